class FileSystemTier:
    @staticmethod
    def _read(file, record, parts):
        if file.read(len(record)) != record:
            return False
        for part in parts:
            if file.readinto(part) != part.nbytes:
                return False
        return len(file.read()) == CRC.size
