// Renders /openapi.json. Everything is set as text, never as markup: the document describes tools of tenants too.
"use strict";

// What clients do all day comes first, what operators do comes last.
const FIRST = ["sessions", "calls"];
const LAST = ["admin", "operation"];
const METHODS = ["get", "post", "put", "patch", "delete", "head"];

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

// The little Markdown that descriptions use: paragraphs, `code`, and links within this service.
function prose(text) {
  return String(text || "").split(/\n{2,}/).filter(Boolean).map((paragraph) => {
    const node = el("p");
    paragraph.split(/(`[^`]+`|\[[^\]]+\]\(\/[^)\s]*\))/).forEach((part) => {
      const link = /^\[([^\]]+)\]\((\/[^)\s]*)\)$/.exec(part);
      if (part.startsWith("`") && part.endsWith("`") && part.length > 2) node.append(el("code", {}, part.slice(1, -1)));
      else if (link) node.append(el("a", { href: link[2] }, link[1]));
      else node.append(part.replace(/\n/g, " "));
    });
    return node;
  });
}

function resolve(api, schema) {
  const seen = new Set();
  while (schema && schema.$ref && !seen.has(schema.$ref)) {
    seen.add(schema.$ref);
    schema = schema.$ref.slice(2).split("/").reduce((at, key) => at && at[key.replace(/~1/g, "/").replace(/~0/g, "~")], api);
  }
  return schema || {};
}

function nameOf(schema) {
  return schema && schema.$ref ? schema.$ref.split("/").pop() : null;
}

function typeOf(api, schema) {
  if (!schema) return "any";
  if (schema.$ref) return nameOf(schema);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = schema.oneOf || schema.anyOf;
  if (choices) return choices.map((choice) => typeOf(api, choice)).join(" | ");
  if (schema.allOf && schema.allOf.length === 1) return typeOf(api, schema.allOf[0]);
  const kinds = [].concat(schema.type || (schema.properties || schema.allOf ? "object" : "any"));
  return kinds.map((kind) => (kind === "array" ? "array of " + typeOf(api, schema.items) : kind)).join(" | ") +
    (schema.format ? " (" + schema.format + ")" : "");
}

// The words of a field: its own, or those of what it refers to.
function described(api, schema) {
  const choices = (schema.oneOf || schema.anyOf || []).flatMap((choice) => [choice, resolve(api, choice)]);
  return [schema, resolve(api, schema), ...choices].map((place) => place.description).find(Boolean);
}

function range(least, most, unit) {
  if (least === undefined && most === undefined) return null;
  if (least === undefined) return "at most " + most + unit;
  return (most === undefined ? "at least " + least : least + " to " + most) + unit;
}

function limits(api, schema) {
  const places = [schema, ...(schema.oneOf || schema.anyOf || [])].map((place) => resolve(api, place));
  const words = places.flatMap((place) => [
    range(place.minimum, place.maximum, ""), range(place.minLength, place.maxLength, " characters"),
    range(place.minItems, place.maxItems, " items"),
    place.enum ? "one of " + place.enum.filter((value) => value !== null).join(", ") : null,
  ]);
  if (schema.default !== undefined && schema.default !== null) words.push("default " + JSON.stringify(schema.default));
  return words.filter(Boolean).join("; ");
}

// What may be opened below a field: an object's own fields, an array's items, choices.
function inner(api, schema) {
  const found = resolve(api, schema);
  if (found.properties || found.allOf) return [schema];
  if (found.items) return inner(api, found.items);
  return (found.oneOf || found.anyOf || []).flatMap((choice) => inner(api, choice));
}

function fields(api, schema, depth) {
  const found = resolve(api, schema);
  const parts = (found.allOf || []).map((part) => fields(api, part, depth));
  const properties = Object.entries(found.properties || {});
  if (properties.length) {
    const body = el("tbody");
    for (const [name, property] of properties) {
      const cell = el("td", {}, prose(described(api, property)));
      const more = limits(api, property);
      if (more) cell.append(el("p", { class: "type" }, more));
      if (depth < 5) {
        for (const below of inner(api, property)) {
          const nested = el("details", { class: "nested" }, el("summary", {}, nameOf(below) || "fields"));
          nested.addEventListener("toggle", () => {
            if (nested.open && nested.children.length === 1) nested.append(...fields(api, below, depth + 1));
          });
          cell.append(nested);
        }
      }
      const required = (found.required || []).includes(name);
      body.append(el("tr", {},
        el("td", {}, el("code", {}, name), required ? el("span", { class: "required" }, "required") : null, el("br"),
          el("span", { class: "type" }, typeOf(api, property))), cell));
    }
    parts.push([el("table", {}, body)]);
  } else if (!parts.length) {
    parts.push([el("p", { class: "type" }, typeOf(api, found)), ...prose(found.description)]);
  }
  return parts.flat();
}

function content(api, value) {
  return Object.entries(value || {}).flatMap(([kind, media]) => [
    el("p", {}, el("span", { class: "badge" }, kind), nameOf(media.schema) ? el("span", { class: "type" }, nameOf(media.schema)) : null),
    ...(media.schema ? fields(api, media.schema, 0) : []),
  ]);
}

function details(api, operation, into) {
  into.append(...prose(operation.description));
  const scopes = (operation.security || []).flatMap((need) => Object.entries(need));
  if (scopes.length) {
    into.append(el("p", {}, "Needs: ", scopes.map(([scheme, list]) => el("span", { class: "badge" }, list.length ? list.join(", ") : scheme))));
  }
  const parameters = (operation.parameters || []).map((parameter) => resolve(api, parameter));
  if (parameters.length) {
    into.append(el("h4", {}, "Parameters"));
    into.append(el("table", {}, el("tbody", {}, parameters.map((parameter) => el("tr", {},
      el("td", {}, el("code", {}, parameter.name), parameter.required ? el("span", { class: "required" }, "required") : null, el("br"),
        el("span", { class: "type" }, parameter.in + ", " + typeOf(api, parameter.schema))),
      el("td", {}, prose(parameter.description), el("p", { class: "type" }, limits(api, parameter.schema || {}))))))));
  }
  if (operation.requestBody) {
    into.append(el("h4", {}, "Body"), ...content(api, resolve(api, operation.requestBody).content));
  }
  into.append(el("h4", {}, "Answers"));
  const problems = [];
  for (const [status, given] of Object.entries(operation.responses || {})) {
    const response = resolve(api, given);
    if (nameOf(given) === "Problem") { problems.push(status); continue; }
    const answer = el("details", { class: "nested" }, el("summary", {}, status + " · " + (response.description || "")));
    answer.append(...content(api, response.content));
    into.append(answer);
  }
  if (problems.length) {
    into.append(el("p", { class: "soft" }, "Refusals are ", el("a", { href: "/problems" }, "problems"), " with status " + problems.join(", ") + "."));
  }
}

function show(api) {
  document.getElementById("version").textContent = "version " + api.info.version;
  document.getElementById("about").replaceChildren(...prose(api.info.description));
  const groups = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((method) => item[method])) {
      const operation = item[method];
      const tag = (operation.tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push({ path, method, operation });
    }
  }
  const list = document.getElementById("list");
  const page = document.getElementById("operations");
  page.replaceChildren();
  const entries = [];
  const rank = (tag) => (FIRST.includes(tag) ? FIRST.indexOf(tag) - FIRST.length : LAST.indexOf(tag) + 1);
  const ordered = [...groups].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b));
  for (const [tag, operations] of ordered) {
    const links = el("ul");
    const head = el("h4", {}, tag);
    const section = el("section", {}, el("h2", { id: "tag-" + tag }, tag));
    for (const { path, method, operation } of operations) {
      const title = operation.summary || operation.operationId;
      const card = el("details", { class: "operation", id: operation.operationId },
        el("summary", {}, el("span", { class: "method " + method }, method.toUpperCase()), el("span", { class: "path" }, path), el("span", { class: "title" }, title)));
      const body = el("div", { class: "body" });
      card.append(body);
      card.addEventListener("toggle", () => { if (card.open && !body.children.length) details(api, operation, body); });
      const link = el("li", {}, el("a", { href: "#" + operation.operationId, title: method.toUpperCase() + " " + path }, title));
      links.append(link);
      section.append(card);
      entries.push({ text: [path, title, operation.operationId, tag].join(" ").toLowerCase(), nodes: [link, card], group: [head, section] });
    }
    list.append(head, links);
    page.append(section);
  }
  document.getElementById("search").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    const open = new Set();
    for (const entry of entries) {
      const matches = entry.text.includes(wanted);
      entry.nodes.forEach((node) => node.classList.toggle("hidden", !matches));
      if (matches) open.add(entry.group[0]);
    }
    for (const entry of entries) entry.group.forEach((node) => node.classList.toggle("hidden", !open.has(entry.group[0])));
  });
  const jump = () => {
    const card = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (card && card.tagName === "DETAILS") { card.open = true; card.scrollIntoView(); }
  };
  window.addEventListener("hashchange", jump);
  jump();
}

fetch("/openapi.json").then((answer) => answer.json()).then(show).catch((error) => {
  document.getElementById("operations").replaceChildren(el("p", {}, "The document could not be loaded: " + error.message));
});
