// Started as `node -e THIS`: waits for one request, runs it, and leaves a report where the request was.
(() => {
const fs = require('fs'), vm = require('vm'), path = require('path'), util = require('util');
const { createRequire } = require('module'), { pathToFileURL } = require('url');
const { spawnSync } = require('child_process');
const word = Buffer.alloc(1);
try { if (fs.readSync(4, word) === 0) process.exit(1); } catch (error) { if (error.code !== 'EBADF') process.exit(1); }
const size = fs.fstatSync(3).size, bytes = Buffer.alloc(size);
fs.readSync(3, bytes, 0, size, 0);
fs.ftruncateSync(3, 0);
const request = JSON.parse(bytes.toString('utf8'));
try { process.chdir(request.cwd); } catch { process.exit(1); }
Object.assign(process.env, request.env);
try { fs.writeSync(4, 's'); fs.closeSync(4); } catch {}

const report = { report: 1, result: null, error: null, content: [], left_out: 0 };
const most = 65536;
const cut = (text) => text.length > most ? text.slice(0, most) + '\n[… cut …]' : text;
const whole = (text) => Buffer.from(cut(String(text)), 'utf8').toString('utf8');
const write = fs.writeSync, truncate = fs.ftruncateSync;
const encode = JSON.stringify, parse = JSON.parse;
// Half of a character is no JSON to others: what stands for it here does.
const stringify = (value) => encode(value)?.replace(/\\(?:\\|u(d[89a-f][0-9a-f]{2}))/g, (all, half) => half ? '\\ufffd' : all);
process.on('exit', () => {
  try {
    const data = Buffer.from(stringify(report), 'utf8');
    truncate(3, 0);
    for (let at = 0; at < data.length;) at += write(3, data, at, data.length - at, at);
  } catch {}
});
const fail = (error) => {
  const isError = error instanceof Error || (error && typeof error.stack === 'string');
  let stack = isError ? String(error.stack) : 'Uncaught ' + util.inspect(error);
  stack = stack.split('\n').filter((line) => !/\[eval\]|node:(vm|internal)/.test(line)).join('\n');
  report.error = {
    name: whole(isError ? error.name : typeof error), value: whole(isError ? error.message : util.inspect(error)),
    traceback: whole(stack),
  };
  process.stderr.write(stack + '\n');
  process.exitCode = 1;
};
process.on('uncaughtException', (error) => { fail(error); process.exit(1); });
process.on('unhandledRejection', (error) => { fail(error); process.exit(1); });

// What code shows beside its output, within bounds. What is too large for the report goes to files, which are kept as artifacts.
const PICTURE = 700_000, BLOCKS = 32, ALL = 2_500_000, FILES = 16;
const { mkdirSync, writeFileSync, rmSync } = fs, { inspect } = util;
let shownBytes = 0, files = 0;
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

const file = path.join(request.cwd, 'code.js');
const local = createRequire(file);
const isThere = (name) => {
  try { local.resolve(name); return true; } catch {}
  return local.resolve.paths(name)?.some((place) => fs.existsSync(path.join(place, name, 'package.json'))) ?? true;
};
const missing = request.dependencies.filter((name) => !isThere(name));
if (missing.length) {
  report.setup = missing.join(', ');
  process.exit(97);
}
let source = request.code;
if (request.typescript) {
  const done = spawnSync('esbuild', ['--loader=ts', '--log-level=error', '--sourcefile=code.ts', '--target=node18'], { input: source, encoding: 'utf8' });
  if (done.error) {
    report.setup = 'esbuild';
    process.exit(98);
  }
  if (done.status !== 0) {
    const text = done.stderr.replaceAll('<stdin>', 'code.ts').trim();
    report.error = { name: 'SyntaxError', value: whole(text.split('\n').find((line) => line.includes('[ERROR]'))?.replace(/^.*\[ERROR\] /, '') ?? text), traceback: whole(text) };
    process.stderr.write(text + '\n');
    process.exit(1);
  }
  source = done.stdout;
}
process.argv = [process.argv[0], file, ...request.args];
const show = (value) => {
  if (!request.show || value === undefined) return;
  let said;
  showing(() => { said = forms(value); });
  const text = typeof said?.['text/plain'] === 'string' ? said['text/plain'] : inspect(value, { depth: 6, maxArrayLength: 100 });
  report.result = whole(text);
  if (text.length > most) showText(null, text);
  if (said) showing(() => showForms(said));
};

async function run() {
  let script;
  try {
    script = new vm.Script(source, { filename: 'code.js', importModuleDynamically: (name) => import(name.startsWith('.') ? pathToFileURL(path.resolve(request.cwd, name)).href : name) });
  } catch (error) {
    if (!(error instanceof SyntaxError) || !/\b(import|export|await)\b/.test(source)) throw error;
    return show(await asModule(error));
  }
  const module = { exports: {}, filename: file, id: '.', loaded: false, children: [], paths: local.resolve.paths('x') };
  Object.assign(globalThis, { require: local, module, exports: module.exports, __filename: file, __dirname: request.cwd });
  show(await script.runInThisContext());
}

// What only a module may have: import, export, await. Its last expression becomes an export, where the parser is at hand.
async function asModule(original) {
  let text = source;
  try {
    const acorn = require('/usr/share/nodejs/acorn');
    const tree = acorn.parse(source, { ecmaVersion: 'latest', sourceType: 'module', allowAwaitOutsideFunction: true });
    const last = tree.body[tree.body.length - 1];
    if (last?.type === 'ExpressionStatement') {
      const { start, end } = last.expression;
      text = source.slice(0, last.start) + 'export const __toolhost_last = (' + source.slice(start, end) + ');' + source.slice(last.end);
    }
  } catch (error) {
    if (error instanceof SyntaxError) {
      error.stack = `SyntaxError: ${error.message}`;
      throw error;
    }
    if (error.code !== 'MODULE_NOT_FOUND') throw original;
  }
  const place = path.join(request.cwd, `.toolhost-${process.pid}.mjs`);
  fs.writeFileSync(place, text);
  try {
    return (await import(pathToFileURL(place).href)).__toolhost_last;
  } catch (error) {
    if (error && typeof error.stack === 'string') error.stack = error.stack.replaceAll(pathToFileURL(place).href, 'code.mjs').replaceAll(place, 'code.mjs');
    throw error;
  } finally {
    fs.rmSync(place, { force: true });
  }
}

run().catch(fail);
})();
