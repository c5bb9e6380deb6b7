// Markdown as models write it, as elements and text nodes. Nothing of a text is ever read as HTML, and a link leads to
// http or https alone: `markdown(text)` is safe for any text.
"use strict";

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|\*(?! )(.+?)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/s;
const LIST = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function inline(text) {
  const found = INLINE.exec(text);
  if (!found) return text ? [text] : [];
  const [all, , code, bold, italic, label, address] = found;
  let made;
  if (code !== undefined) made = element("code", code);
  else if (bold !== undefined) made = element("strong", ...inline(bold));
  else if (italic !== undefined) made = element("em", ...inline(italic));
  else {
    made = element("a", label);
    Object.assign(made, { href: address, target: "_blank", rel: "noopener noreferrer" });
  }
  const before = text.slice(0, found.index);
  return [...(before ? [before] : []), made, ...inline(text.slice(found.index + all.length))];
}

function markdown(text) {
  const page = document.createDocumentFragment(), lines = text.split("\n");
  let at = 0;
  const take = (fits) => {
    const taken = [];
    while (at < lines.length && fits(lines[at])) taken.push(lines[at++]);
    return taken;
  };
  const starts = (line) => !line.trim() || /^(```|#{1,6} |> ?|\|)/.test(line) || LIST.test(line) || /^(---+|\*\*\*+)\s*$/.test(line);
  while (at < lines.length) {
    const line = lines[at], heading = /^(#{1,6}) (.*)$/.exec(line);
    if (!line.trim()) at += 1;
    else if (line.startsWith("```")) {
      at += 1;
      page.append(element("pre", element("code", take((each) => !each.startsWith("```")).join("\n"))));
      at += 1;
    } else if (heading) {
      page.append(element(heading[1].length < 3 ? "h3" : "h4", ...inline(heading[2])));
      at += 1;
    } else if (/^(---+|\*\*\*+)\s*$/.test(line)) {
      page.append(element("hr"));
      at += 1;
    } else if (line.startsWith(">")) {
      page.append(element("blockquote", markdown(take((each) => each.startsWith(">")).map((each) => each.replace(/^> ?/, "")).join("\n"))));
    } else if (line.startsWith("|")) page.append(table(take((each) => each.startsWith("|"))));
    else if (LIST.test(line)) page.append(list(take((each) => LIST.test(each) || /^\s{2,}\S/.test(each))));
    else page.append(element("p", ...inline([lines[at++], ...take((each) => !starts(each))].join("\n"))));
  }
  return page;
}

// Items of one depth; what is indented more is a list in the item before it, or goes on with it.
function list(lines) {
  const [, indent, mark] = LIST.exec(lines[0]), made = element(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark)) made.start = parseInt(mark, 10);
  for (let at = 0; at < lines.length;) {
    const found = LIST.exec(lines[at++]), inner = [];
    while (at < lines.length && !(LIST.exec(lines[at])?.[1].length <= indent.length)) inner.push(lines[at++]);
    const first = inner.findIndex((each) => LIST.test(each)), more = first < 0 ? inner : inner.slice(0, first);
    const item = element("li", ...inline([found[3], ...more.map((each) => each.trim())].join("\n")));
    if (first >= 0) item.append(list(inner.slice(first)));
    made.append(item);
  }
  return made;
}

function table(lines) {
  const cells = (line) => line.replace(/^\||\|\s*$/g, "").split("|").map((cell) => cell.trim());
  const made = element("table"), isRule = (line) => /^[|\s:-]+$/.test(line);
  lines.forEach((line, place) => {
    const name = place === 0 && isRule(lines[1] || "") ? "th" : "td";
    if (!isRule(line)) made.append(element("tr", ...cells(line).map((cell) => element(name, ...inline(cell)))));
  });
  return made;
}
