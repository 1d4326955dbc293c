def _toolhost():
    # Started as `python3 -X utf8 -c THIS RICH once|serve`. `once` waits for one request and runs it; `serve` runs one
    # request after another in the same __main__. Everything is taken from the standard library before any file of
    # the session can take its place, and kept in locals, where the session's code does not look for it.
    import sys, os

    rich_source, mode = sys.argv[1:3]
    library = os.path.dirname(os.__file__)
    search = sys.path[:]
    sys.path[:] = [
        place for place in search
        if place.endswith(".zip") or place.startswith(library) and not place.endswith("-packages")
    ]
    import ast, builtins, fcntl, inspect, importlib._bootstrap, json, linecache, resource, signal, site
    import binascii, socket, struct, traceback

    sys.path[:] = search
    main = sys.modules["__main__"].__dict__
    del main["_toolhost"]
    TEXT, PICTURE, BLOCKS, ALL, FILES = 65_536, 700_000, 32, 2_500_000, 16
    read, pread, pwrite, cut, dup2, leave = os.read, os.pread, os.pwrite, os.ftruncate, os.dup2, os._exit
    make, opened, written, close, unlink = os.makedirs, os.open, os.write, os.close, os.unlink
    dumps, loads = json.dumps, json.loads
    streams = [sys.stdout, sys.stderr]
    for stream in streams:
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    own = set()

    def lift(number):
        # Out of the way of 0, 1, 2, and closed in every program that is started.
        try:
            lifted = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 200)
        except OSError:
            lifted = os.dup(number)
        os.close(number)
        own.add(lifted)
        return lifted

    def forget_own():
        for number in own:
            try:
                os.close(number)
            except OSError:
                pass
        own.clear()

    os.register_at_fork(after_in_child=forget_own)

    def whole(text):
        return str(text).replace("\0", "\ufffd").encode("utf-8", "backslashreplace").decode("utf-8")

    def clean(text, most=TEXT):
        text = whole(text)
        if len(text) <= most:
            return text
        return text[: most * 2 // 3] + "\n[\u2026 " + str(len(text) - most) + " characters left out \u2026]\n" + text[-most // 3 :]

    class Answer:
        """What a run shows beside its output, within bounds. What is too large goes to files, which are kept as artifacts."""

        def __init__(self, folder=None):
            self.blocks, self.bytes, self.left_out = [], 0, 0
            self.folder, self.files = folder, 0
            self.result = self.error = None

        def add(self, piece):
            """Takes a block, or the media type and the text or bytes of one."""
            if isinstance(piece, tuple):
                self.show(*piece)
            elif not self.place(piece):
                if piece["type"] == "json":
                    try:
                        return self.keep(piece["mime_type"], dumps(piece["json"], allow_nan=False).encode())
                    except (TypeError, ValueError, RecursionError):
                        pass
                self.left_out += 1

        def show(self, mime_type, data):
            if isinstance(data, str):
                block = {"type": "text", "text": data}
                if mime_type is not None:
                    block["mime_type"] = mime_type
                if len(data) > TEXT or not self.place(block):
                    self.keep(mime_type or "text/plain", data.encode())
                return
            text = binascii.b2a_base64(data, newline=False).decode("ascii") if len(data) <= PICTURE else None
            if text is None or not self.place({"type": "image", "mime_type": mime_type, "data": text}):
                self.keep(mime_type, data)

        def place(self, block):
            try:
                size = len(dumps(block, allow_nan=False))
            except (TypeError, ValueError, RecursionError):
                return False
            if len(self.blocks) >= BLOCKS or self.bytes + size > ALL:
                return False
            self.bytes += size
            self.blocks.append(block)
            return True

        def keep(self, mime_type, data):
            if self.folder is None or self.files >= FILES or len(self.blocks) >= BLOCKS:
                self.left_out += 1
                return
            name = str(self.files)
            place, at = self.folder + "/" + name, 0
            try:
                make(self.folder, 0o700, exist_ok=True)
                file = opened(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                try:
                    while at < len(data):
                        at += written(file, memoryview(data)[at : at + 1_048_576])
                except OSError:
                    unlink(place)
                    raise
                finally:
                    close(file)
            except Exception:
                self.left_out += 1
                return
            self.files += 1
            self.blocks.append({"type": "kept", "mime_type": mime_type, "name": name})

    current = [Answer()]
    loaded, loops = {}, []

    def rich():
        if not loaded:
            loaded.update({"clean": clean, "whole": whole, "PICTURE": PICTURE})
            exec(compile(rich_source, "<toolhost>", "exec"), loaded)
        return loaded

    def plain(value):
        try:
            return whole(repr(value))
        except Exception as error:
            return whole(f"<{type(value).__name__}: its repr raised {type(error).__name__}>")

    def show(value, is_result):
        answer = current[0]
        if is_result:
            text = plain(value)
            answer.result = clean(text)
            if len(text) > TEXT:
                answer.add((None, text))
        elif isinstance(value, str):
            answer.add((None, whole(value)))
            return
        if type(value) in (int, float, bool, str, bytes, complex, type(None)):
            if not is_result:
                answer.add((None, plain(value)))
            return
        try:
            blocks = rich()["blocks"](value)
        except Exception:
            blocks = []
        if not blocks and not is_result:
            blocks = [(None, plain(value))]
        for block in blocks:
            answer.add(block)

    def display(*values, **_):
        """Shows values as the last expression of the code would be shown."""
        for value in values:
            show(value, False)

    class PyplotHook:
        """Lets `show` take the figures, once pyplot is imported."""

        def find_spec(self, name, path=None, target=None):
            if name != "matplotlib.pyplot":
                return None
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            spec = importlib._bootstrap._find_spec(name, path, target)
            if spec is None or not hasattr(spec.loader, "exec_module"):
                return spec
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                try:
                    rich()["attach"](module, current)
                except Exception:
                    pass

            spec.loader.exec_module = exec_module
            return spec

    def figures():
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and loaded:
            try:
                rich()["take_figures"](pyplot, current)
            except Exception:
                pass

    def refresh():
        # What another call has installed for the session's user is found without a new interpreter.
        importlib.invalidate_caches()
        if site.ENABLE_USER_SITE:
            place = site.getusersitepackages()
            if place not in sys.path and os.path.isdir(place):
                before = sys.path[:]
                site.addsitedir(place)
                fresh = [entry for entry in sys.path if entry not in before]
                at = next((i for i, entry in enumerate(before) if entry.endswith("-packages")), len(before))
                sys.path[:] = before[:at] + fresh + before[at:]

    def of_error(error, trace):
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__
        try:
            value = error.msg if isinstance(error, SyntaxError) else str(error)
        except Exception:
            value = ""
        try:
            text = "".join(traceback.format_exception(kind, error, trace))
        except Exception:
            text = ""
        return {"name": clean(name, 500), "value": clean(value, 2_000), "traceback": clean(text, 16_384)}

    def fail(error, trace, hook):
        current[0].error = of_error(error, trace)
        try:
            hook(type(error), error, trace)
        except Exception:
            pass

    def run(request, name, hook):
        """Runs the code. Returns what ended it, if something did."""
        source = request["code"]
        linecache.cache[name] = (len(source), None, [line + "\n" for line in source.split("\n")], name)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            tree = compile(source, name, "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
            last = None
            if request["show"] and tree.body and isinstance(tree.body[-1], ast.Expr):
                last = compile(ast.Expression(tree.body.pop().value), name, "eval", flags, dont_inherit=True)
            body = compile(tree, name, "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            fail(error, None, hook)
            return error

        def step(code):
            value = eval(code, main)
            if code.co_flags & inspect.CO_COROUTINE:
                import asyncio

                if not loops:
                    loops.append(asyncio.new_event_loop())
                value = loops[0].run_until_complete(value)
            return value

        try:
            step(body)
            if last is not None:
                value = step(last)
                if value is not None:
                    builtins._ = value
                    show(value, True)
        except SystemExit as error:
            return error
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
                trace = trace.tb_next
            fail(error, trace, hook)
            return error
        return None

    def print_error(kind, error, trace):
        traceback.print_exception(kind, error, trace)

    def flush():
        for stream in [sys.stdout, sys.stderr] + streams:
            try:
                stream.flush()
            except Exception:
                pass

    def usage():
        own_use, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return own_use.ru_utime + own_use.ru_stime + children.ru_utime + children.ru_stime, own_use.ru_maxrss

    def report(memory, **more):
        answer = current[0]
        document = {
            "report": 1, "result": answer.result, "error": answer.error, "content": answer.blocks,
            "left_out": answer.left_out, **more,
        }
        try:
            data = dumps(document, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
        except Exception:
            document.update(result=None, content=[], left_out=len(answer.blocks))
            data = dumps(document).encode("ascii", "replace")
        cut(memory, 0)
        at = 0
        while at < len(data):
            at += pwrite(memory, data[at:], at)

    def take_request(memory):
        data = pread(memory, os.fstat(memory).st_size, 0)
        cut(memory, 0)
        return loads(data)

    sys.meta_path.insert(0, PyplotHook())
    builtins.display = display

    def once():
        try:
            if not read(4, 1):
                leave(1)
        except OSError:
            pass  # An agent that starts no interpreter before it is asked for.
        request = take_request(3)
        os.environ.update(request["env"])
        try:
            os.chdir(request["cwd"])
        except OSError:
            leave(1)
        if request["null_stdin"]:
            null = os.open(os.devnull, os.O_RDONLY)
            dup2(null, 0)
            os.close(null)
        memory, pid = lift(3), os.getpid()
        current[0] = Answer(request.get("shown"))
        refresh()
        try:
            os.write(4, b"s")
            os.close(4)
        except OSError:
            pass
        name = "<code>"
        sys.argv = [name] + request["args"]
        sys.excepthook = print_error
        ended = run(request, name, lambda *seen: sys.excepthook(*seen))
        if os.getpid() == pid:
            figures()
            try:
                report(memory)
            except OSError:
                pass
        if isinstance(ended, SystemExit):
            raise ended.with_traceback(None)
        if ended is not None:
            sys.exit(130 if isinstance(ended, KeyboardInterrupt) else 1)

    def serve():
        import faulthandler

        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, lift(3))
        null = lift(os.open(os.devnull, os.O_RDWR))
        for number in (0, 1, 2):
            dup2(null, number)
        faulthandler.enable(sys.__stderr__)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        executions = 0
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 5)
            # Python 3.11 drops the flag that would do this: children of the code must not get them.
            for number in descriptors:
                os.set_inheritable(number, False)
            if not message or len(descriptors) != 5:
                leave(0)
            executions += 1
            one(executions, null, descriptors)

    def one(number, null, descriptors):
        memory, answers = descriptors[3:]
        own.update((memory, answers))
        for target in (0, 1, 2):
            dup2(descriptors[target], target)
            os.close(descriptors[target])
        request, before, pid = take_request(memory), usage()[0], os.getpid()
        current[0] = Answer(request.get("shown"))
        for index, stream in enumerate(streams):
            if stream.closed:
                streams[index] = open(index + 1, "w", 1, "utf-8", "backslashreplace", closefd=False)
        sys.stdout, sys.stderr = streams
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
        answer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, answers)
        ended, setup = None, None
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            answer.send(b"p" + struct.pack("=i", pid))
            os.environ.update(request["env"])
            if request["cwd"] is not None:
                try:
                    os.chdir(request["cwd"])
                except OSError as error:
                    setup = f"the working directory {request['cwd']}: {error.strerror}"
            sys.argv = ["<code>"] + request["args"]
            refresh()
            if setup is None:
                ended = run(request, f"<code {number}>", print_error)
                figures()
        except KeyboardInterrupt as error:
            ended = error
            current[0].error = current[0].error or {"name": "KeyboardInterrupt", "value": "", "traceback": ""}
        finally:
            while True:
                try:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    break
                except KeyboardInterrupt:
                    pass
        if os.getpid() != pid:
            # A copy of the interpreter that the code has forked and let run into its end.
            flush()
            leave(0)
        if isinstance(ended, SystemExit) and ended.code not in (None, 0):
            fail(ended, None, lambda *_: None)
        flush()
        cpu, peak = usage()
        code = 130 if isinstance(ended, KeyboardInterrupt) else 1 if current[0].error else 0
        report(memory, executions=number, setup=setup, cpu_ms=int((cpu - before) * 1000), max_rss_bytes=peak * 1024)
        for target in (0, 1, 2):
            dup2(null, target)
        os.close(memory)
        own.discard(memory)
        answer.send(b"d" + bytes([code]))
        answer.close()
        own.discard(answers)

    (once if mode == "once" else serve)()
_toolhost()
