// Chinese search under Material. The theme cuts a query into the words of its index, but never looks at the query's last
// character: "块表" is searched as "块". A character more at the end of each run is the one that it leaves out.
"use strict";

window.Worker = class extends window.Worker {
  postMessage(message, ...rest) {
    const query = message && typeof message.data === "string";
    super.postMessage(query ? { ...message, data: message.data.replace(/\p{Script=Han}+/gu, "$&的") } : message, ...rest);
  }
};
