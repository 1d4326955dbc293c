// Follows `node_shown.js`, as `node --expose-internals -e`: waits for one request, runs it, and leaves a report where the request was.
const word = Buffer.alloc(1);
try { if (fs.readSync(4, word) === 0) process.exit(1); } catch (error) { if (error.code !== 'EBADF') process.exit(1); }
const size = fs.fstatSync(3).size, bytes = Buffer.alloc(size);
fs.readSync(3, bytes, 0, size, 0);
fs.ftruncateSync(3, 0);
begin(JSON.parse(bytes.toString('utf8')));
try { process.chdir(request.cwd); } catch { process.exit(1); }
Object.assign(process.env, request.env);
try { fs.writeSync(4, 's'); fs.closeSync(4); } catch {}

const truncate = fs.ftruncateSync;
process.on('exit', () => {
  try {
    const data = Buffer.from(stringify(report), 'utf8');
    truncate(3, 0);
    for (let at = 0; at < data.length;) at += write(3, data, at, data.length - at, at);
  } catch {}
});
const failed = (error) => { fail(error); process.exitCode = 1; };
process.on('uncaughtException', (error) => { failed(error); process.exit(1); });
process.on('unhandledRejection', (error) => { failed(error); process.exit(1); });

const file = path.join(request.cwd, 'code.js'), local = createRequire(file);
const { source, code } = prepared(local);
if (code !== undefined) process.exit(code);
process.argv = [process.argv[0], file, ...request.args];

async function run() {
  let script;
  try {
    script = new vm.Script(source, { filename: 'code.js' });
    if (/\bimport\b/.test(source)) script = new vm.Script(withImports(), { filename: 'code.js' });
  } catch (error) {
    if (!(error instanceof SyntaxError) || !/\b(import|export|await)\b/.test(source)) throw error;
    return show(await asModule(error));
  }
  const module = { exports: {}, filename: file, id: '.', loaded: false, children: [], paths: local.resolve.paths('x') };
  Object.assign(globalThis, { require: local, module, exports: module.exports, __filename: file, __dirname: request.cwd });
  show(await script.runInThisContext());
}

// A script whose `import(…)` is the place's.
function withImports() {
  const edits = [];
  try {
    visited(parserOf().parse(source, { ecmaVersion: 'latest', allowHashBang: true }), ({ type, start }) => {
      if (type === 'ImportExpression') edits.push([start, start + 6, HELPER]);
    });
  } catch {}
  hidden(HELPER, importsOf(file));
  return edited(source, edits);
}

// What only a module may have: import, export, await. Its last expression becomes an export, where the parser is at hand.
async function asModule(original) {
  let text = source;
  try {
    const tree = parserOf().parse(source, { ecmaVersion: 'latest', sourceType: 'module', allowAwaitOutsideFunction: true });
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

run().catch(failed);
