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

const report = { report: 1, result: null, error: null, content: [] };
const most = 65536;
const cut = (text) => text.length > most ? text.slice(0, most) + '\n[… cut …]' : text;
const whole = (text) => Buffer.from(cut(String(text)), 'utf8').toString('utf8');
const stringify = JSON.stringify, write = fs.writeSync, truncate = fs.ftruncateSync;
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
  if (request.show && value !== undefined) report.result = whole(util.inspect(value, { depth: 6, maxArrayLength: 100 }));
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
