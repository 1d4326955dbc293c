def _toolhost():
    import ast, linecache, os, sys, traceback
    with os.fdopen(3, "rb") as file:
        source = file.read().decode("utf-8")
    name, show_last = "<code>", sys.argv[1] == "show"
    sys.argv = [name] + sys.argv[2:]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    linecache.cache[name] = (len(source), None, [line + "\n" for line in source.split("\n")], name)
    scope = sys.modules["__main__"].__dict__
    del scope["_toolhost"]
    hook = sys.excepthook = lambda kind, error, trace: traceback.print_exception(kind, error, trace)
    try:
        try:
            tree = ast.parse(source, name)
            last = None
            if show_last and tree.body and isinstance(tree.body[-1], ast.Expr):
                last = compile(ast.Interactive([tree.body.pop()]), name, "single", dont_inherit=True)
            body = compile(tree, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            hook(type(error), error, None)
            sys.exit(1)
        exec(body, scope)
        if last is not None:
            exec(last, scope)
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
_toolhost()
