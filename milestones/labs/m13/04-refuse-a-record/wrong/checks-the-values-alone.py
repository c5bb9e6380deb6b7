class FileSystemTier:
    @staticmethod
    def _read(file, record, parts):
        if file.read(len(record)) != record:
            return False
        check = 0
        for part in parts:
            if file.readinto(part) != part.nbytes:
                return False
            check = zlib.crc32(part, check)
        return file.read() == CRC.pack(check)
