// `live NAME` in a page: a box in which a milestone's own scheduler runs in the reader's browser. Nothing is loaded before the first
// click; then Python comes from site/live/python.js, beside both languages, and runs in a worker
// (milestones/site/live/). The picture is drawn there by the code that draws the page's moving pictures.
const LIVE = (() => {
  const ZH = document.documentElement.lang.startsWith("zh");
  const HERE = document.currentScript.src;
  const OwnWorker = window.Worker; // from a disk the theme's search replaces it by a frame
  const say = (en, zh) => (ZH ? zh : en);

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  let source; // of the worker: loaded once for all boxes of a page
  function workerSource() {
    source ??= new Promise((resolve, reject) => {
      const script = element("script", { src: new URL("../../../live/python.js", HERE).href });
      script.onload = () => {
        const text = `(${window.folovllmPython})()`;
        resolve(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
      };
      script.onerror = () => reject(new Error(say("Python is not beside this page", "页面旁边没有 Python")));
      document.head.append(script);
    });
    return source;
  }

  // One call at a time. `seconds`: for longer no answer is waited for, since a reader's code may never end.
  class Python {
    constructor(tree) {
      this.tree = tree;
    }

    async start() {
      this.worker = new OwnWorker(await workerSource());
      await this.#post({ tree: this.tree });
    }

    async ask(call, spec, seconds, onDone) {
      if (!this.worker) await this.start();
      return (await this.#post({ call, spec }, seconds, onDone)).answer;
    }

    #post(message, seconds, onDone) {
      return new Promise((resolve, reject) => {
        const end = (error) => {
          this.worker.terminate();
          this.worker = null;
          reject(new Error(error));
        };
        const words = say(`no answer after ${seconds} s: stopped`, `${seconds} 秒还没有结果，已停止`);
        const timer = seconds && setTimeout(() => end(words), 1000 * seconds);
        this.worker.onmessage = ({ data }) => {
          if (data.done !== undefined) return onDone(data.done);
          clearTimeout(timer);
          return data.broken ? end(data.broken) : resolve(data);
        };
        this.worker.onerror = (event) => end(event.message || say("the worker does not start", "worker 没有启动"));
        this.worker.postMessage(message);
      });
    }
  }

  // A button under the picture; `open` builds the rest when Python is there.
  function starting(box, words, hint, tree, open) {
    const status = element("span", { className: "live__status", role: "status" });
    const button = element("button", { type: "button", className: "md-button" }, words);
    button.onclick = async () => {
      button.disabled = true;
      status.textContent = say("Python is being loaded …", "正在加载 Python……");
      const python = new Python(tree);
      try {
        await python.start();
        await open(python);
        box.querySelector("figure")?.remove();
        row.remove();
        box.dataset.state = "open";
      } catch (error) {
        status.textContent = error.message;
        button.disabled = false;
        source = undefined;
      }
    };
    const size = say(" Python comes from this site, 9 MB.", "Python 从本站加载，共 9 MB。");
    const row = element("p", { className: "live__start" }, button, status);
    status.textContent = hint + size;
    box.append(row);
  }

  return { say, element, starting, Python };
})();
