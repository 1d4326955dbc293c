def _toolhost():
    # Started as `python3 -I -S -X utf8 -c THIS NODE`: the interpreter of a context of JavaScript, as far as the agent knows one. Node.js can take
    # no descriptors over a socket. So this takes them, has its child, one Node.js that lasts, run the code, and passes on what that writes.
    #
    # What the child has written by the time it says that a run is over is the run's: its pipes are then emptied of exactly what is in them. Nothing
    # that code writes can look like that word. What comes between two runs is dropped, as a context of Python does.
    import fcntl, os, select, signal, socket, struct, sys, termios

    PIECE, ANSWER, LAST, TICKS = 65_536, 16_777_216, 2_000, os.sysconf("SC_CLK_TCK")
    NO_NODE, NOT_STARTED = 99, 100

    def lift(number):
        # Out of the way of what the child gets, and closed in every program that is started.
        lifted = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 64)
        os.close(number)
        return lifted

    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, lift(3))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    wake, woken = (lift(number) for number in os.pipe())
    for number in (wake, woken):
        os.set_blocking(number, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)

    class Gone(Exception):
        """The child is no more."""

    class Broken(Exception):
        """The child says what it must not: the session's code has got hold of its descriptors."""

    stdin = lift(os.memfd_create("stdin"))
    child = asks = answers = hears = out = err = None
    ready, streams, said, statuses, last = False, set(), bytearray(), [], bytearray()

    def start():
        # The child, with pipes of its own. It says when it is ready for a request.
        nonlocal child, asks, answers, hears, out, err
        (asked, asks), (answers, answered), (heard, hears), (out, out_end), (err, err_end) = (
            map(lift, os.pipe()) for _ in range(5)
        )
        ends = (stdin, out_end, err_end, asked, answered, heard)
        try:
            child = os.posix_spawnp(
                "node", ["node", "--expose-internals", "-e", sys.argv[1]], os.environ, setpgroup=0,
                file_actions=[(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends)],
            )
        finally:
            for end in ends[1:]:
                os.close(end)
            if child is None:
                close()
        for end in (asks, hears):
            os.set_blocking(end, False)
        streams.update((out, err))
        last.clear()

    def close():
        for end in (asks, answers, hears, out, err):
            os.close(end)

    def forget():
        # A child that ended before it was ready: what it said last. Another one may do better.
        nonlocal child
        if not statuses:
            os.killpg(child, signal.SIGKILL)
            statuses.append(os.waitpid(child, 0)[1])
        empty(err, None)
        code = os.waitstatus_to_exitcode(statuses[0])
        close()
        for of_child in (streams, said, statuses):
            of_child.clear()
        child = None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        words = bytes(last).decode("utf-8", "replace").replace("\0", "\ufffd").strip()
        return f"Node.js ended as it started ({how}): {words or 'it said nothing'}"

    def lines():
        # What the child says, line by line as far as it is there.
        piece = os.read(answers, PIECE)
        if not piece:
            raise Gone
        said.extend(piece)
        if len(said) > ANSWER:
            raise Broken
        if b"\n" not in piece:
            return []
        *whole, said[:] = bytes(said).split(b"\n")
        return whole

    def pass_on(source, target, most=PIECE):
        # One piece of output. False when no more will come.
        piece = os.read(source, min(most, PIECE))
        if source == err and not ready:
            last.extend(piece)
            del last[:-LAST]
        at = 0
        while at < len(piece) and target is not None:
            try:
                at += os.write(target, memoryview(piece)[at:])
            except OSError:
                break  # Nobody reads it any more.
        return len(piece)

    def empty(source, target):
        waiting = struct.unpack("i", fcntl.ioctl(source, termios.FIONREAD, b"\0\0\0\0"))[0]
        while waiting > 0 and (moved := pass_on(source, target, waiting)):
            waiting -= moved

    def wanted():
        # Which signals came: an interrupt is to be passed on; of the child's end `ended` knows.
        try:
            return signal.SIGINT in os.read(wake, PIECE)
        except BlockingIOError:
            return False

    def ended():
        if not statuses:
            pid, status = os.waitpid(child, os.WNOHANG)
            statuses.extend([status] if pid else [])
        return bool(statuses)

    def used():
        try:
            with open(f"/proc/{child}/stat", "rb") as file:
                ticks = file.read().rpartition(b")")[2].split()[11:15]
            with open(f"/proc/{child}/status", "rb") as file:
                peak = [int(line.split()[1]) for line in file if line.startswith(b"VmHWM:")]
        except OSError:
            return 0, 0
        return sum(map(int, ticks)) * 1000 // TICKS, sum(peak) * 1024

    def events(*others):
        poll = select.poll()
        for number in (wake, *others, *((answers, *streams) if child is not None else ())):
            poll.register(number, select.POLLIN)
        return {number for number, _ in poll.poll()}

    def heed(happened):
        # What the child does while it runs nothing.
        nonlocal ready
        for number in happened & streams:
            if not pass_on(number, None):
                streams.discard(number)
        if ended():
            raise Gone
        if answers in happened:
            for line in lines():
                if ready or line != b"r":
                    raise Broken if ready else Gone
                ready = True
        if said:
            raise Broken if ready else Gone  # It has nothing else to say now.

    def until_ready():
        # Whether an interrupt came meanwhile.
        wish = False
        if child is None:
            start()
        while not ready:
            happened = events()
            wish |= wake in happened and wanted()
            heed(happened)
        return wish

    def serve():
        try:
            start()
        except OSError:
            pass  # The first request tries again, and tells.
        while True:
            happened = events(control.fileno())
            if wake in happened:
                wanted()
            if child is not None:
                try:
                    heed(happened)
                except Gone:
                    if ready:
                        raise
                    forget()
            if control.fileno() in happened:
                message, descriptors, _, _ = socket.recv_fds(control, 1, 5)
                for number in descriptors:
                    os.set_inheritable(number, False)
                if not message or len(descriptors) != 5:
                    os._exit(0)
                one(*descriptors)

    runs = 0

    def one(text, stdout, stderr, memory, answer):
        nonlocal runs
        answer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, answer)
        request = os.pread(memory, os.fstat(memory).st_size, 0)
        os.ftruncate(memory, 0)
        wanted()  # Whatever was wished before is not for this run.
        setup, before = None, (0, 0)
        answer.send(b"p" + struct.pack("=i", os.getpid()))
        try:
            wish = until_ready()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            code, setup = NO_NODE, "node"
        except OSError as error:
            code, setup = NOT_STARTED, f"Node.js could not be started: {error.strerror}"
        except Gone:
            code, setup = NOT_STARTED, forget()
        if setup is not None:
            import json

            report = json.dumps({"report": 1, "setup": setup}, separators=(",", ":")).encode()
        else:
            runs += 1
            for source in (out, err):
                empty(source, None)
            os.ftruncate(stdin, 0)
            os.lseek(stdin, 0, os.SEEK_SET)
            while piece := os.read(text, PIECE):
                os.write(stdin, piece)
            os.lseek(stdin, 0, os.SEEK_SET)
            before = used()
            try:
                code, report = run(request, {out: stdout, err: stderr}, wish)
            except Broken:
                os.write(stderr, b"The code has disturbed its interpreter, which was ended.\n")
                raise
            finally:
                empty(out, stdout)
                empty(err, stderr)
        after = used() if setup is None else before
        facts = b'{"executions":%d,"cpu_ms":%d,"max_rss_bytes":%d,' % (runs, max(after[0] - before[0], 0), after[1])
        report, at = facts + report[1:], 0
        while at < len(report):
            at += os.pwrite(memory, report[at:], at)
        for number in (text, stdout, stderr, memory):
            os.close(number)
        answer.send(b"d" + bytes([code]))
        answer.close()

    def run(request, targets, wish):
        # Gives the child a request and moves its output until it has answered: how the run went, and its report.
        token = os.urandom(16).hex().encode()
        asking = bytearray(b'{"token":"%s","request":%s}\n' % (token, request))
        poll = select.poll()
        for number in (wake, answers, *targets):
            poll.register(number, select.POLLIN)
        poll.register(asks, select.POLLOUT)
        interruptible = False
        if wish:
            asking += b'{"interrupt":"%s"}\n' % token
        while True:
            happened = {number for number, _ in poll.poll()}
            for source in happened & set(targets):
                if not pass_on(source, targets[source]):
                    poll.unregister(source)
            if wake in happened and wanted():
                wish = True
                asking += b'{"interrupt":"%s"}\n' % token
                poll.register(asks, select.POLLOUT)
            if asks in happened:
                try:
                    del asking[: os.write(asks, asking)]
                except BlockingIOError:
                    pass
                if not asking:
                    poll.unregister(asks)
            if answers in happened:
                for line in lines():
                    word, *rest = line.split(b" ", 3)
                    if word == b"a":
                        interruptible = True
                    elif word == b"o" and len(rest) == 1 and rest[0].isdigit():
                        interruptible = False
                        try:
                            os.write(hears, bytes([int(rest[0][:3]) % 256]))
                        except BlockingIOError:
                            raise Broken from None
                    elif word == b"d" and len(rest) == 3 and rest[0] == token and rest[1].isdigit() and rest[2][:1] == b"{":
                        return min(int(rest[1][:3]), 255), rest[2]
                    else:
                        raise Broken
            elif ended():
                raise Gone
            if wish and interruptible:
                # Once: what is interrupted does not come back, and a second signal could hit Node.js where it takes none.
                wish = interruptible = False
                try:
                    os.killpg(child, signal.SIGINT)
                except ProcessLookupError:
                    pass

    def leave():
        # As the child has ended. One that does not end, having closed its descriptors perhaps, is ended.
        for _ in range(100):
            if ended():
                break
            select.select([], [], [], 0.01)
        else:
            raise Broken
        code = os.waitstatus_to_exitcode(statuses[0])
        if code < 0:
            if code != -signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)

    try:
        try:
            serve()
        except (Gone, BrokenPipeError):
            leave()
    except Broken:
        os.kill(child, signal.SIGKILL)
        os._exit(1)


_toolhost()
