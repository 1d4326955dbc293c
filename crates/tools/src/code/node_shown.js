// The first part of both programs that run JavaScript (`node.js`, `node_context.js`): the report of a run, what code shows in it beside its
// output, and how code becomes something to run.
const fs = require('fs'), vm = require('vm'), path = require('path'), util = require('util');
const { createRequire } = require('module'), { pathToFileURL } = require('url');
const { spawnSync } = require('child_process');
const MISSING = 97, NO_TRANSPILER = 98;

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
  const flags = ['--loader=ts', '--log-level=error', '--sourcefile=code.ts', '--target=node18', ...options];
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
