// The `html` tag, and `render`, which patches the page to match a template.
//
// Holes are data: in text they become text nodes, in attributes they go through setAttribute. Only the literal parts of
// a template, which are our own source, are parsed as markup. So no name and no value can become markup.
//
//   html`<a href=${url} @click=${listener} ?hidden=${flag} .value=${text}>${text or template or list}</a>`
//
// A list holds templates with one root element each; `keyed(key, template)` keeps the element of a key while rows move.

const HOLE = "\uE000";
const END = "\uE001";
const PROPERTIES = new Set(["value", "checked", "open", "selected", "indeterminate"]);
const ADDRESSES = new Set(["href", "src", "action", "formaction", "xlink:href"]);
const BANNED = /^(on|style$|srcdoc$|srcset$)/;
const plans = new WeakMap();

class Template {
  constructor(strings, values, isSvg) {
    this.strings = strings;
    this.values = values;
    this.isSvg = isSvg;
    this.key = undefined;
  }
}

export const html = (strings, ...values) => new Template(strings, values, false);
export const svg = (strings, ...values) => new Template(strings, values, true);

export function keyed(key, template) {
  template.key = String(key);
  return template;
}

// An address that a link may have: of this console, or of the web. Anything else, such as javascript:, leads nowhere.
export function safeAddress(text) {
  // Browsers leave these out.
  return /^(?:\/(?![/\\])|[#?]|https?:\/\/)/i.test(text) && !/[\t\n\r]/.test(text) ? text : "#";
}

// The markup of the literal parts, with a mark in place of each hole.
export function markup(strings) {
  let text = "";
  let inTag = false;
  let quote = "";
  strings.forEach((part, index) => {
    for (let at = 0; at < part.length; at += 1) {
      const char = part[at];
      if (!inTag) {
        inTag = char === "<" && /[a-z/]/i.test(part[at + 1] ?? "");
      } else if (quote) {
        if (char === quote) quote = "";
      } else if (char === '"' || char === "'") {
        quote = char;
      } else if (char === ">") {
        inTag = false;
      }
    }
    text += part;
    if (index < strings.length - 1) {
      const mark = `${HOLE}${index}${END}`;
      if (!inTag) text += `<!--${mark}-->`;
      else text += quote ? mark : `"${mark}"`;
    }
  });
  return text.trim();
}

function planOf(template) {
  let plan = plans.get(template.strings);
  if (plan === undefined) {
    plan = compile(template.strings, template.isSvg);
    plans.set(template.strings, plan);
  }
  return plan;
}

function compile(strings, isSvg) {
  const holder = document.createElement("template");
  const text = markup(strings);
  // Literal parts only.
  holder.innerHTML = isSvg ? `<svg>${text}</svg>` : text;
  const content = holder.content;
  if (isSvg) content.firstChild.replaceWith(...content.firstChild.childNodes);
  const parts = [];
  const walker = document.createTreeWalker(content, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_COMMENT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.nodeType === Node.COMMENT_NODE) {
      if (node.data.startsWith(HOLE)) parts.push({ kind: "child", path: pathTo(content, node), index: holes(node.data)[0] });
    } else {
      for (const attribute of [...node.attributes]) attributePart(content, node, attribute, parts);
    }
  }
  return { content, parts };
}

function attributePart(content, node, attribute, parts) {
  const name = attribute.name;
  if (BANNED.test(name)) throw new Error(`a template may not have the attribute ${name}`);
  if (!attribute.value.includes(HOLE)) return;
  const indexes = holes(attribute.value);
  const literals = attribute.value.split(new RegExp(`${HOLE}\\d+${END}`));
  const path = pathTo(content, node);
  const kind = { "@": "event", ".": "property", "?": "flag" }[name[0]] ?? "attribute";
  const bare = kind === "attribute" ? name : name.slice(1);
  if (kind === "property" && !PROPERTIES.has(bare)) throw new Error(`a template may not set the property ${bare}`);
  node.removeAttribute(name);
  parts.push({ kind, path, name: bare, indexes, literals });
}

const holes = (text) => [...text.matchAll(new RegExp(`${HOLE}(\\d+)${END}`, "g"))].map((found) => Number(found[1]));

function pathTo(root, node) {
  const path = [];
  for (let at = node; at !== root; at = at.parentNode) path.unshift([...at.parentNode.childNodes].indexOf(at));
  return path;
}

class Instance {
  constructor(template) {
    this.plan = planOf(template);
    this.key = template.key;
    this.fragment = document.importNode(this.plan.content, true);
    const nodes = this.plan.parts.map((part) => part.path.reduce((at, index) => at.childNodes[index], this.fragment));
    this.parts = this.plan.parts.map((part, index) => makePart(part, nodes[index]));
    this.update(template.values);
  }

  update(values) {
    for (const part of this.parts) part.update(values);
  }
}

function makePart(plan, node) {
  if (plan.kind === "child") {
    const child = new ChildPart(node);
    return { update: (values) => child.set(values[plan.index]) };
  }
  if (plan.kind === "event") {
    let listener = null;
    node.addEventListener(plan.name, (event) => listener?.(event));
    return { update: (values) => (listener = values[plan.indexes[0]]) };
  }
  let before;
  const single = plan.literals.every((literal) => literal === "");
  return {
    update(values) {
      const [first] = plan.indexes;
      const value = single ? values[first] : plan.literals.reduce((text, literal, at) => text + (values[plan.indexes[at - 1]] ?? "") + literal);
      if (value === before) return;
      if (plan.kind === "property") {
        // Else it would undo what somebody types.
        if (node !== document.activeElement) node[plan.name] = value;
      } else {
        setAttribute(node, plan, plan.kind === "flag" ? Boolean(value) : value);
      }
      before = value;
    },
  };
}

function setAttribute(node, plan, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(plan.name);
  else if (value === true) node.setAttribute(plan.name, "");
  else node.setAttribute(plan.name, ADDRESSES.has(plan.name) ? safeAddress(String(value)) : String(value));
}

// What stands at a hole in text: nothing, a text, a template, or a list of templates.
class ChildPart {
  constructor(end) {
    this.end = end;
    this.start = document.createComment("");
    end.before(this.start);
    this.clear();
  }

  clear() {
    while (this.start.nextSibling !== this.end) this.start.nextSibling.remove();
    this.text = null;
    this.instance = null;
    this.items = null;
  }

  set(value) {
    if (Array.isArray(value)) this.setList(value);
    else if (value instanceof Template) this.setOne(value);
    else this.setText(value === null || value === undefined || value === false ? "" : String(value));
  }

  setText(value) {
    if (this.text === null) {
      this.clear();
      this.text = document.createTextNode(value);
      this.end.before(this.text);
    } else if (this.text.data !== value) {
      this.text.data = value;
    }
  }

  setOne(template) {
    const now = this.instance;
    if (now !== null && now.plan === planOf(template) && now.key === template.key) {
      now.update(template.values);
      return;
    }
    this.clear();
    this.instance = new Instance(template);
    this.end.before(this.instance.fragment);
  }

  setList(list) {
    if (this.items === null) this.clear();
    const before = this.items ?? new Map();
    this.items = new Map();
    let cursor = this.start.nextSibling;
    list.forEach((template, index) => {
      if (!(template instanceof Template)) {
        if (template === null || template === undefined || template === false) return;
        template = text(template);
      }
      let key = template.key ?? `#${index}`;
      if (this.items.has(key)) key = `${key}#${index}`;
      let item = before.get(key);
      if (item !== undefined && item.instance.plan === planOf(template)) {
        before.delete(key);
        item.instance.update(template.values);
      } else {
        item = makeItem(template);
      }
      this.items.set(key, item);
      if (item.node === cursor) cursor = cursor.nextSibling;
      else this.end.parentNode.insertBefore(item.node, cursor);
    });
    for (const item of before.values()) {
      if (item.node === cursor) cursor = cursor.nextSibling;
      item.node.remove();
    }
  }
}

const text = (value) => html`<span>${value}</span>`;

function makeItem(template) {
  const instance = new Instance(template);
  const [node] = instance.fragment.children;
  if (instance.fragment.children.length !== 1) throw new Error("an item of a list needs one root element");
  return { instance, node };
}

const roots = new WeakMap();

// Make `element` show `value`: a template, a text or a list.
export function render(value, element) {
  let part = roots.get(element);
  if (part === undefined) {
    element.replaceChildren(document.createComment(""));
    part = new ChildPart(element.firstChild);
    roots.set(element, part);
  }
  part.set(value);
}
