// Follows `node_shown.js`, as `node --expose-internals -e` below `node_context.py`: runs one request after another in one global scope. A request is a
// line on descriptor 3, what is said of it are lines on 4.
//
// The code is evaluated as a debugger's console would: `let`, `const` and `class` may be declared again, `await` stands anywhere, and the value of the
// last expression is known. Only while it has not yet waited for anything can it be interrupted by a signal; this says when that is.
const { AsyncLocalStorage } = require('async_hooks'), { Socket } = require('net'), { Writable } = require('stream'), { Session } = require('inspector');
const { isPromise } = util.types, { readSync } = fs, { ReadStream } = fs;
const session = new Session();
session.connect();
const post = session.post.bind(session);
const parser = parserOf(), describe = Object.getOwnPropertyDescriptor;
const streams = [process.stdout, process.stderr], push = Writable.prototype.write;
const say = (text) => {
  const data = Buffer.from(text + '\n', 'utf8');
  for (let at = 0; at < data.length;) at += write(4, data, at);
};

// A value that the debugger names by a number of its own.
let received, receiver;
hidden('__toolhost_run', (value) => { received = value; });
post('Runtime.evaluate', { expression: '__toolhost_run' }, (error, answer) => { receiver = answer.result.objectId; });
const valueOf = (remote) => {
  const field = ['objectId', 'unserializableValue', 'value'].find((field) => remote[field] !== undefined);
  received = undefined;
  post('Runtime.callFunctionOn', {
    objectId: receiver, functionDeclaration: 'function (value) { this(value); }', silent: true,
    arguments: [field ? { [field]: remote[field] } : {}],
  }, () => {});
  return received;
};

let running, runs = 0, local, load, stdin;
begin({});
Object.defineProperty(process, 'stdin', {
  configurable: true, enumerable: true,
  get: () => stdin ??= new ReadStream(null, { fd: 0, fs: { open: fs.open, read: fs.read, close: (_, done) => done(null) } }),
});

const flushed = (stream, then) => {
  while (stream.writableCorked) stream.uncork();
  if (stream.writable && stream.writableLength) push.call(stream, '', () => then());
  else then();
};
// The run is over. What it has written is on its way before that is said.
const lives = (run) => run !== undefined && run === running && !run.over && !process._exiting;
const finish = (run, code) => {
  if (!lives(run)) return;
  run.over = true;
  stdin?.destroy();
  stdin = undefined;
  flushed(streams[0], () => flushed(streams[1], () => {
    say(`d ${run.token} ${code} ${stringify(report)}`);
    running = undefined;
    begin({});
    post('Runtime.releaseObjectGroup', { objectGroup: 'run' });
    post('Runtime.discardConsoleEntries');
  }));
};
const failed = (run, error, where) => {
  if (!lives(run)) return;
  try { fail(error, where); } catch { report.error ??= { name: 'Error', value: 'it cannot be shown', traceback: '' }; }
  finish(run, 1);
};
const interrupted = (run) => {
  if (!lives(run)) return;
  report.error = { name: 'Interrupted', value: 'the code was interrupted', traceback: '' };
  finish(run, 130);
};
const succeeded = (run, value) => {
  if (!lives(run)) return;
  showing(() => show(value));
  finish(run, 0);
};
// An error that nobody took belongs to the run whose code it comes from. Of an earlier one, whose call has ended, it is only said.
const whose = new AsyncLocalStorage();
const untaken = (error) => {
  const run = whose.getStore();
  if (run === undefined || run === running) failed(running, error);
  else try { push.call(streams[1], util.inspect(error) + '\n'); } catch {}
};
process.on('uncaughtException', untaken);
process.on('unhandledRejection', untaken);

const settled = (run, name, error, answer) => {
  if (!lives(run)) return;
  if (error) return failed(run, new Error(error.message));
  const { result, exceptionDetails: thrown } = answer;
  if (thrown) {
    const value = valueOf(thrown.exception);
    // One that V8 has found before it ran anything says nowhere where.
    const unplaced = run.atOnce && value instanceof SyntaxError && !String(value.stack).includes(name);
    const line = run.source.split('\n')[thrown.lineNumber] ?? '';
    return failed(run, value, unplaced ? `${name}:${thrown.lineNumber + 1}\n${line}\n${' '.repeat(thrown.columnNumber)}^\n\n` : '');
  }
  const value = valueOf(result);
  let waits = isPromise(value);
  try { waits ||= value !== null && typeof value === 'object' && typeof value.then === 'function'; } catch {}
  if (waits) Promise.resolve(value).then((value) => succeeded(run, value), (error) => failed(run, error));
  else succeeded(run, value);
};

const script = new vm.Script('__toolhost_run()', { filename: 'toolhost.run' });
const ack = Buffer.alloc(1);
const evaluate = (run, name) => {
  const options = { replMode: true, awaitPromise: true, silent: true, objectGroup: 'run' };
  const number = runs % 256;
  let inside = true, answered, said = false;
  ack[0] = number ^ 1;
  // From `a` on a signal may come, and none any more once `o` is acknowledged.
  const disarm = () => {
    if (!said) say(`o ${number}`);
    said = true;
    // What was read is in the buffer also when an interrupt came before it was looked at.
    while (ack[0] !== number && readSync(5, ack) !== 0);
  };
  hidden('__toolhost_run', () => {
    delete globalThis.__toolhost_run;
    say('a');
    post('Runtime.evaluate', { expression: `${run.source}\n//# sourceURL=${name}`, ...options }, (...answer) => {
      if (inside) answered = answer;
      else settled(run, name, ...answer);
    });
    disarm();
  });
  let error;
  try { whose.run(run, () => script.runInThisContext({ breakOnSigint: true })); } catch (thrown) { error = thrown; disarm(); }
  inside = false;
  if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') interrupted(run);
  else if (error) failed(run, error);
  else if (answered) {
    run.atOnce = true;
    settled(run, name, ...answered);
  }
};

const start = (token, asked) => {
  begin(asked);
  const run = running = { token };
  runs += 1;
  Object.assign(process.env, asked.env);
  try {
    if (asked.cwd !== null) process.chdir(asked.cwd);
    const file = path.join(process.cwd(), 'code.js');
    local = createRequire(file);
    load = importsOf(file);
    Object.assign(globalThis, { require: local, __filename: file, __dirname: path.dirname(file) });
    process.argv = [process.argv[0], file, ...asked.args];
  } catch (error) {
    report.setup = `the working directory ${asked.cwd ?? ''}: ${error.code ?? error}`;
    return finish(run, 1);
  }
  // What is imported now may be needed by a later run.
  const { source, code } = prepared(local, '--tsconfig-raw={"compilerOptions":{"verbatimModuleSyntax":true}}');
  if (code !== undefined) return finish(run, code);
  // V8 knows better what is wrong with it, or that nothing is.
  try { run.source = asScript(source); } catch { run.source = source; }
  evaluate(run, `code-${runs}.js`);
};

const parts = [];
const heed = (line) => {
  const { token, request, interrupt } = parse(line);
  if (request) start(token, request);
  else if (interrupt && running?.token === interrupt) interrupted(running);
};
new Socket({ fd: 3, readable: true, writable: false }).setEncoding('utf8').on('data', (text) => {
  const lines = text.split('\n');
  for (const [index, part] of lines.entries()) {
    parts.push(part);
    if (index < lines.length - 1) heed(parts.splice(0).join(''));
  }
}).on('close', () => process.reallyExit(0));

// `import` and `export` are a module's, and what runs here is none: they become what a script can say.
const imported = async (name, options, names = []) => {
  const module = await load(name, options);
  for (const one of names) if (!(one in module)) throw new SyntaxError(`The requested module '${name}' does not provide an export named '${one}'`);
  return module;
};
Object.defineProperty(imported, 'meta', { get: () => ({ url: pathToFileURL(__filename).href, filename: __filename, dirname: __dirname }) });
hidden(HELPER, imported);
// What is declared at the top may be declared again by a later run, in whatever way: `let` again as `let`, which `const` and `class` become, and what
// was a `var` or a function again as `var`. Which it was V8 knows: a declaration that it refused has made nothing, and one in a block may have.
const kindsNow = () => {
  let lexical;
  post('Runtime.globalLexicalScopeNames', {}, (error, answer) => { lexical = new Set(answer?.names); });
  return (name) => {
    if (lexical.has(name)) return 'let';
    const { configurable = true, writable } = describe(globalThis, name) ?? {};
    return !configurable && writable ? 'var' : undefined;
  };
};
let known;
const namesIn = (pattern) => {
  switch (pattern?.type) {
    case 'Identifier': return [pattern.name];
    case 'ObjectPattern': return pattern.properties.flatMap((one) => namesIn(one.value ?? one.argument));
    case 'ArrayPattern': return pattern.elements.flatMap(namesIn);
    case 'AssignmentPattern': return namesIn(pattern.left);
    case 'RestElement': return namesIn(pattern.argument);
    default: return [];
  }
};
const kindOf = (names, wanted) => names.map(known).find((kind) => kind !== undefined) ?? wanted;
const declared = ({ type, start, end, kind, id, declarations }) => {
  if (type === 'VariableDeclaration') {
    const now = kindOf(declarations.flatMap((one) => namesIn(one.id)), kind === 'var' ? 'var' : 'let');
    return now === kind ? [] : [[start, start + kind.length, now]];
  }
  if (type === 'ClassDeclaration' && id) return [[start, start, `${kindOf([id.name], 'let')} ${id.name} = `], [end, end, ';']];
  if (type === 'FunctionDeclaration' && id && kindOf([id.name], 'var') === 'let') return [[start, start, `let ${id.name} = `], [end, end, ';']];
  return [];
};
const asScript = (source) => {
  const tree = parser.parse(source, { ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowImportExportEverywhere: true, allowHashBang: true });
  const edits = [];
  known = kindsNow();
  visited(tree, (node) => {
    if (node.type === 'ImportExpression') edits.push([node.start, node.start + 6, HELPER]);
    if (node.type === 'MetaProperty' && node.meta.name === 'import') edits.push([node.start, node.end, HELPER + '.meta']);
  });
  for (const node of tree.body) {
    const replace = (text) => edits.push([node.start, node.end, text + '\n'.repeat(source.slice(node.start, node.end).split('\n').length - 1)]);
    if (node.type === 'ImportDeclaration') replace(asVariables(node, source));
    else if (node.type === 'ExportAllDeclaration') replace(`await ${HELPER}(${importOf(node, source)});`);
    else if (node.type === 'ExportNamedDeclaration' && !node.declaration) replace(node.source ? `await ${HELPER}(${importOf(node, source)});` : '');
    else if (node.type.startsWith('Export')) {
      const { start, end, type, id } = node.declaration, nameless = /Function|Class/.test(type) && !id;
      edits.push([node.start, start, nameless ? '(' : ''], ...nameless ? [[end, end, ')']] : declared(node.declaration));
    } else edits.push(...declared(node));
  }
  return edited(source, edits);
};
// What is imported, and with which attributes.
const importOf = ({ source: { raw }, word = 'with', attributes = [] }, text) => {
  const those = attributes.map(({ key, value }) => `${text.slice(key.start, key.end)}: ${text.slice(value.start, value.end)}`);
  return those.length ? `${raw}, { ${word}: { ${those.join(', ')} } }` : `${raw}, undefined`;
};
const asVariables = (node, text) => {
  const { specifiers } = node;
  const nameOf = (node) => node.name ?? node.value;
  const named = specifiers.filter(({ type }) => type !== 'ImportNamespaceSpecifier')
    .map(({ imported, local }) => [imported ? nameOf(imported) : 'default', local.name]);
  const all = specifiers.find(({ type }) => type === 'ImportNamespaceSpecifier');
  const kind = kindOf(specifiers.map(({ local }) => local.name), 'let');
  // Names of TypeScript may be types, which are nothing here.
  const wanted = request.typescript ? [] : named.map(([name]) => name);
  const module = `await ${HELPER}(${importOf(node, text)}, ${encode(wanted)})`;
  const names = named.map(([name, local]) => `${encode(name)}: ${local}`).join(', ');
  if (!all) return named.length ? `${kind} { ${names} } = ${module};` : `${module};`;
  return `${kind} ${all.local.name} = ${module};` + (named.length ? ` ${kind} { ${names} } = ${all.local.name};` : '');
};
say('r');
