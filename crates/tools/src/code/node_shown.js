// The first part of both programs that run JavaScript (`node.js`, `node_context.js`): the report of a run, what code shows in it beside its
// output, and how code becomes something to run.
const fs = require('fs'), vm = require('vm'), path = require('path'), util = require('util');
const Module = require('module'), { createRequire } = Module, { pathToFileURL } = require('url');
const { spawnSync } = require('child_process');
const MISSING = 97, NO_TRANSPILER = 98;
// What this program was started with is not for those that code starts.
process.execArgv = [];

let request, report, shownBytes, files;
const begin = (asked) => {
  request = asked;
  report = { report: 1, result: null, error: null, content: [], left_out: 0 };
  shownBytes = files = 0;
};
const most = 65536;
const cut = (text) => text.length > most ? text.slice(0, most) + '\n[… cut …]' : text;
const whole = (text) => Buffer.from(cut(String(text)), 'utf8').toString('utf8');
const write = fs.writeSync;
const encode = JSON.stringify, parse = JSON.parse;
// Half of a character is no JSON to others: what stands for it here does.
const stringify = (value) => encode(value)?.replace(/\\(?:\\|u(d[89a-f][0-9a-f]{2}))/g, (all, half) => half ? '\\ufffd' : all);
// What has ended the code, in the report and on stderr. `where` is the place in the code of an error that does not know it.
const fail = (error, where = '') => {
  const isError = error instanceof Error || (error && typeof error.stack === 'string');
  let stack = isError ? String(error.stack) : 'Uncaught ' + util.inspect(error);
  // Below a context's own call of the debugger there is nothing of the code.
  stack = stack.split(/\n *at Session\.post \(node:inspector/)[0];
  stack = where + stack.split('\n').filter((line) => !/\[eval\]|node:(vm|internal)/.test(line)).join('\n');
  report.error = {
    name: whole(isError ? error.name : typeof error), value: whole(isError ? error.message : util.inspect(error)),
    traceback: whole(stack),
  };
  process.stderr.write(stack + '\n');
};

// What code shows beside its output, within bounds. What is too large for the report goes to files, which are kept as artifacts.
const PICTURE = 700_000, BLOCKS = 32, ALL = 2_500_000, FILES = 16;
const { mkdirSync, writeFileSync, rmSync } = fs, { inspect } = util;
const place = (block) => {
  const size = Buffer.byteLength(stringify(block));
  if (report.content.length >= BLOCKS || shownBytes + size > ALL) return false;
  shownBytes += size;
  report.content.push(block);
  return true;
};
const keep = (type, data) => {
  const name = String(files), target = `${request.shown}/${name}`;
  try {
    if (!request.shown || files >= FILES || report.content.length >= BLOCKS) throw new Error('too many');
    mkdirSync(request.shown, { recursive: true, mode: 0o700 });
    try {
      writeFileSync(target, data, { mode: 0o600 });
    } catch (error) {
      rmSync(target, { force: true });
      throw error;
    }
    files += 1;
    report.content.push({ type: 'kept', mime_type: type, name });
  } catch {
    report.left_out += 1;
  }
};
const showText = (type, value) => {
  const text = Buffer.from(String(value), 'utf8').toString('utf8').replaceAll('\0', '\ufffd');
  const block = type ? { type: 'text', mime_type: type, text } : { type: 'text', text };
  if (text.length > most || !place(block)) keep(type ?? 'text/plain', Buffer.from(text, 'utf8'));
};
const showImage = (type, value) => {
  const data = typeof value === 'string' ? Buffer.from(value, 'base64') : Buffer.from(value);
  if (data.length > PICTURE || !place({ type: 'image', mime_type: type, data: data.toString('base64') })) keep(type, data);
};
const showJson = (type, value) => {
  const text = stringify(value);
  if (text === undefined) throw new TypeError('not a value of JSON');
  if (!place({ type: 'json', mime_type: type, json: parse(text) })) keep(type, Buffer.from(text, 'utf8'));
};
const showOne = (type, data) => {
  if (type.startsWith('image/') && type !== 'image/svg+xml') return showImage(type, data);
  if (type === 'application/json' || type.endsWith('+json')) return showJson(type, data);
  return showText(type, data);
};
const pictures = [['image/png', '89504e470d0a1a0a'], ['image/jpeg', 'ffd8ff'], ['image/gif', '47494638']];
// The forms of a value by media type: what it says of itself, as notebooks ask, or a picture by its first bytes.
const forms = (value) => {
  if (value instanceof Uint8Array) {
    const begin = Buffer.from(value.buffer, value.byteOffset, Math.min(value.byteLength, 8)).toString('hex');
    const type = pictures.find(([, magic]) => begin.startsWith(magic))?.[0];
    return type && { [type]: value };
  }
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return undefined;
  const said = value[Symbol.for('Jupyter.display')]?.();
  return said && typeof said === 'object' && typeof said.then !== 'function' ? said : undefined;
};
const showForms = (said) => {
  for (const [type, data] of Object.entries(said)) if (type !== 'text/plain') showOne(type, data);
};
const showing = (show) => {
  try { show(); } catch { report.left_out += 1; }
};
const display = (...values) => {
  for (const value of values) showing(() => {
    const said = forms(value);
    if (said) showForms(said);
    else showText(null, typeof value === 'string' ? value : inspect(value, { depth: 6, maxArrayLength: 100 }));
  });
};
for (const [name, type] of Object.entries({
  html: 'text/html', markdown: 'text/markdown', latex: 'text/latex', svg: 'image/svg+xml', json: 'application/json',
  png: 'image/png', jpeg: 'image/jpeg',
})) display[name] = (data) => showing(() => showOne(type, data));
globalThis.display = display;

const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });

// `import(…)` finds what a module would in the place of `file`, not where this program was started. A script that is made by `vm` has none of its own
// without a flag, so what it imports goes through the function by this name.
const HELPER = '__toolhost_import';
const compile = Module.prototype._compile;
const importsOf = (file) => {
  const module = new Module(file);
  compile.call(module, 'module.exports = (name, options) => import(name, options)', file);
  return module.exports;
};

// The parser that is in Node.js. That of 18 does not know the attributes of an import, which its V8 knows: they are in `attributes` here, as those of a
// newer one are, and the word before them in `word`.
const parserOf = () => {
  const { Parser, tokTypes } = require('internal/deps/acorn/acorn/dist/acorn');
  return Parser.extend((Base) => class extends Base {
    semicolon() {
      const { input, start, end, lastTokEnd } = this, word = input.slice(start, end);
      const follows = word === 'with' || word === 'assert' && !/[\n\r\u2028\u2029]/.test(input.slice(lastTokEnd, start));
      if (follows && /^\s*\{/.test(input.slice(end))) {
        this.next();
        this.given = { word, attributes: this.parseExprAtom().properties };
      }
      return super.semicolon();
    }
    finishNode(node, type) {
      if (/^(Import|Export)\w*Declaration$/.test(type)) {
        Object.assign(node, this.given);
        this.given = undefined;
      }
      return super.finishNode(node, type);
    }
    parseDynamicImport(node) {
      this.next();
      node.source = this.parseMaybeAssign();
      node.options = this.eat(tokTypes.comma) && this.type !== tokTypes.parenR ? this.parseMaybeAssign() : null;
      if (node.options) this.eat(tokTypes.comma);
      this.expect(tokTypes.parenR);
      return this.finishNode(node, 'ImportExpression');
    }
  });
};
const visited = (node, visit) => {
  visit(node);
  for (const child of Object.values(node).flat()) if (typeof child?.type === 'string') visited(child, visit);
};
const edited = (source, edits) => {
  edits.sort((one, other) => other[0] - one[0] || other[1] - one[1]);
  return edits.reduce((text, [start, end, now]) => text.slice(0, start) + now + text.slice(end), source);
};

// The code as JavaScript; or how the run ends without running it, with what lacks in the report's `setup`.
const prepared = (local, ...options) => {
  const isThere = (name) => {
    try { local.resolve(name); return true; } catch {}
    return local.resolve.paths(name)?.some((place) => fs.existsSync(path.join(place, name, 'package.json'))) ?? true;
  };
  const missing = request.dependencies.filter((name) => !isThere(name));
  if (missing.length) {
    report.setup = missing.join(', ');
    return { code: MISSING };
  }
  if (!request.typescript) return { source: request.code };
  const flags = ['--loader=ts', '--log-level=error', '--sourcefile=code.ts', '--target=node18.20', ...options];
  const done = spawnSync('esbuild', flags, { input: request.code, encoding: 'utf8', maxBuffer: 2 ** 26 });
  if (done.error) {
    report.setup = 'esbuild';
    return { code: NO_TRANSPILER };
  }
  if (done.status === 0) return { source: done.stdout };
  const text = done.stderr.replaceAll('<stdin>', 'code.ts').trim();
  const line = text.split('\n').find((line) => line.includes('[ERROR]'))?.replace(/^.*\[ERROR\] /, '') ?? text;
  report.error = { name: 'SyntaxError', value: whole(line), traceback: whole(text) };
  process.stderr.write(text + '\n');
  return { code: 1 };
};
const show = (value) => {
  if (!request.show || value === undefined) return;
  let said;
  showing(() => { said = forms(value); });
  const text = typeof said?.['text/plain'] === 'string' ? said['text/plain'] : inspect(value, { depth: 6, maxArrayLength: 100 });
  report.result = whole(text);
  if (text.length > most) showText(null, text);
  if (said) showing(() => showForms(said));
};
