// The body of folovllmPython(): it runs in a Web Worker, beside FILES and LOCK. First it gets the name of a tree, then
// calls of the driver, one at a time: {call, spec} is answered by {answer}, and before that perhaps by some {done}.
async function unpacked(name) {
  const packed = Uint8Array.from(atob(FILES[name]), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function imported(name) {
  return import(URL.createObjectURL(new Blob([await unpacked(name)], { type: "text/javascript" })));
}

async function startPython(tree) {
  // A page from a disk can start classic workers only. Pyodide wants a module's, which it tells by this.
  self.importScripts = () => {
    throw new TypeError("modules are imported");
  };
  // Pyodide fetches its parts; here they are at hand.
  const plain = self.fetch;
  self.fetch = async (url, ...more) => {
    const name = String(url).split("/").pop();
    if (!(name in FILES)) return plain(url, ...more);
    const type = name.endsWith(".wasm") ? "application/wasm" : "application/zip";
    return new Response(await unpacked(name), { headers: { "Content-Type": type } });
  };
  const { loadPyodide } = await imported("pyodide.mjs");
  const createPyodideModule = (await imported("pyodide.asm.mjs")).default;
  const python = await loadPyodide({ indexURL: "https://here.invalid/", createPyodideModule, lockFileContents: LOCK });
  python.unpackArchive(await unpacked(`${tree}.zip`), "zip", { extractDir: "/course" });
  for (const name of ["driver.py", "exercise_driver.py"]) python.FS.writeFile(`/course/${name}`, await unpacked(name));
  python.runPython("import sys; sys.path.insert(0, '/course'); import driver");
  return python.globals.get("driver").answer;
}

let answer;
self.onmessage = async ({ data }) => {
  try {
    if (data.tree) {
      answer = await startPython(data.tree);
      self.postMessage({ ready: true });
    } else {
      const say = (done) => self.postMessage({ done });
      self.postMessage({ answer: JSON.parse(answer(data.call, JSON.stringify(data.spec), say)) });
    }
  } catch (error) {
    self.postMessage({ broken: String(error) });
  }
};
