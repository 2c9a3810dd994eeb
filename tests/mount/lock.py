"""A process that locks as it is told: a command per line comes in, an answer per line goes out."""
import errno, fcntl, os, signal, struct, sys, time

FILES = {}
KINDS = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}
FLOCKS = {"shared": fcntl.LOCK_SH, "exclusive": fcntl.LOCK_EX, "none": fcntl.LOCK_UN}
MODES = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR}
OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
LAYOUT = "hhqqi4x"


def lock(op, name, kind, start, length):
    wanted = struct.pack(LAYOUT, KINDS[kind], os.SEEK_SET, int(start), int(length), 0)
    return struct.unpack(LAYOUT, fcntl.fcntl(FILES[name], op, wanted))


def question(op, *rest):
    kind, _, start, length, _ = lock(op, *rest)
    word = next(word for word, number in KINDS.items() if number == kind)
    return "free" if word == "none" else f"{word} {start} {length}"


def child():
    """Has every open file, and none of the locks."""
    pid = os.fork()
    if pid == 0:
        os.close(0)
        time.sleep(600)
        os._exit(0)
    return str(pid)


def do(verb, *rest):
    if verb == "open":
        FILES[rest[0]] = os.open(rest[1], os.O_CREAT | MODES[rest[2]])
    elif verb == "close":
        os.close(FILES.pop(rest[0]))
    elif verb == "get":
        return question(fcntl.F_GETLK, *rest)
    elif verb == "set":
        lock(fcntl.F_SETLK, *rest)
    elif verb == "wait":
        lock(fcntl.F_SETLKW, *rest)
    elif verb == "open-file-set":
        lock(OFD_SETLK, *rest)
    elif verb == "open-file-wait":
        lock(OFD_SETLKW, *rest)
    elif verb == "flock":
        fcntl.flock(FILES[rest[0]], FLOCKS[rest[1]] | fcntl.LOCK_NB)
    elif verb == "flock-wait":
        fcntl.flock(FILES[rest[0]], FLOCKS[rest[1]])
    elif verb == "write":
        os.pwrite(FILES[rest[0]], rest[1].encode(), 0)
    elif verb == "read":
        os.pread(FILES[rest[0]], 10, 0)
    elif verb == "fork":
        return child()
    else:
        raise ValueError(verb)
    return "ok"


def interrupted(*_):
    raise InterruptedError(errno.EINTR, "a signal")


signal.signal(signal.SIGUSR1, interrupted)
for line in sys.stdin:
    try:
        answer = do(*line.split())
    except OSError as error:
        answer = "EDEADLK" if error.errno == errno.EDEADLK else errno.errorcode[error.errno]
    print(answer, flush=True)
