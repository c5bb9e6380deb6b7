// `live NAME` in a page: a box in which a milestone's own scheduler runs in the reader's browser; and exercise.js. Nothing
// is loaded before the first click; then Python comes from site/live/python.js, beside both languages, and runs in a worker
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

  const SIZE = 9e6; // of python.js, about: a server's own figure is of what it has compressed
  let source; // of the worker: loaded once for all boxes of a page
  function workerSource(bar) {
    source ??= (location.protocol === "file:" ? fromDisk() : fetched(bar)).then(
      (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" })),
      () => {
        source = undefined;
        throw new Error(say("Python is not beside this page", "页面旁边没有 Python"));
      },
    );
    return source;
  }

  const script = () => new URL("../../../live/python.js", HERE).href;

  async function fetched(bar) {
    const answer = await fetch(script());
    if (!answer.ok) throw new Error(answer.status);
    const parts = [];
    let size = 0;
    for (const reader = answer.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      if (bar) bar.value = Math.min(1, (size += value.length) / SIZE);
    }
    bar?.removeAttribute("value"); // what remains is to start it
    return `${await new Blob(parts).text()}\nfolovllmPython();`;
  }

  // A page from a disk may fetch nothing, but it may load a script.
  function fromDisk() {
    return new Promise((resolve, reject) => {
      const onload = () => resolve(`(${window.folovllmPython})()`);
      document.head.append(element("script", { src: script(), onload, onerror: reject }));
    });
  }

  // One call at a time. `seconds`: for longer no answer, nor a word that it goes on, is waited for, since a reader's code
  // may never end.
  class Python {
    constructor(tree) {
      this.tree = tree;
    }

    async start(bar) {
      this.worker = new OwnWorker(await workerSource(bar));
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
        const wait = () => seconds && setTimeout(() => end(words), 1000 * seconds);
        let timer = wait();
        this.worker.onmessage = ({ data }) => {
          clearTimeout(timer);
          if (data.done !== undefined) {
            timer = wait();
            return onDone(data.done);
          }
          return data.broken ? end(data.broken) : resolve(data);
        };
        this.worker.onerror = (event) => end(event.message || say("the worker does not start", "worker 没有启动"));
        this.worker.postMessage(message);
      });
    }
  }

  const pythons = new Map(); // tree -> the Python of all boxes that share it
  function shared(tree) {
    if (!pythons.has(tree)) pythons.set(tree, new Python(tree));
    return pythons.get(tree);
  }

  // A button under the picture; `open` builds the rest when Python is there.
  function starting(box, words, hint, tree, open) {
    const status = element("span", { className: "live__status", role: "status" });
    const bar = element("progress", { max: 1, hidden: true, ariaLabel: say("loading", "加载") });
    const button = element("button", { type: "button", className: "md-button" }, words);
    button.onclick = async () => {
      button.disabled = true;
      bar.hidden = false;
      status.textContent = say("Python is being loaded …", "正在加载 Python……");
      const python = new Python(tree);
      try {
        await python.start(bar);
        await open(python);
        box.querySelector("figure")?.remove();
        row.remove();
        box.dataset.state = "open";
      } catch (error) {
        status.textContent = error.message;
        button.disabled = false;
        bar.hidden = true;
      }
    };
    const size = say(" Python comes from this site, 9 MB.", "Python 从本站加载，共 9 MB。");
    const row = element("p", { className: "live__start" }, button, bar, status);
    status.textContent = hint + size;
    box.append(row);
  }

  return { say, element, starting, shared, Python };
})();
