"""Makes the faults that an operator meets, one after another, and checks the answer to each: check.py BINARY [NAME...]."""

import concurrent.futures
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import pty
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent.parent / "src" / "nano" / "model"

from serving import BOUND_S, Cut, Serving, request, until

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
USED = 'perigee_kv_blocks{state="used"}'
# Far from its end whatever the machine: as long as the context allows, and no token of it is drafted.
LONG = {"prompt": [7] * 64, "max_tokens": 8000, "ignore_eos": True, "repetition_guard": "off", "speculation": False, "seed": 1, "temperature": 1}


class Skipped(Exception):
    """The fault cannot be made here."""


# ---- Processes and signals.


def fault_client_killed_mid_stream(serve):
    with serve() as server:
        # A process that is killed leaves a reset behind where bytes were unread, and a plain end where none were.
        for leave in ("reset", "close"):
            stream = server.stream(LONG)
            assert server.metric(USED) > 0
            getattr(stream, leave)()
            server.until_idle()
        assert server.metric('perigee_finished_sequences_total{reason="abort"}') == 2
        assert [entry["finish"] for entry in server.entries("request")] == ["client_left"] * 2, server.log()
        check_answers(server)


def fault_server_killed_mid_stream(serve):
    with tempfile.TemporaryDirectory() as volume:
        with serve(f"kernels.cache_dir={volume}") as server:
            stream = server.stream(LONG)
            server.signal("KILL")
            assert server.ended() == -signal.SIGKILL
            check_cut(stream)
        with serve(f"kernels.cache_dir={volume}", port=server.port) as again:
            check_answers(again)


def fault_sigterm_mid_stream(serve):
    with serve("server.drain_timeout_s=600") as server:
        stream = server.stream(LONG | {"max_tokens": 2000, "stream_options": {"include_usage": True}})
        server.signal("TERM")
        until(lambda: server.get("/health/startup").json()["status"] == "draining", "the server drains")
        refused = server.post(TEXT, {"prompt": "x"})
        assert (refused.status, refused.error()) == (503, "server_draining") and int(refused.headers["retry-after"]) > 0, refused
        events = stream.to_the_end()
        assert events[-1]["usage"]["completion_tokens"] == 2000, events[-1]
        assert server.ended() == 0, server.log()


def fault_drain_deadline_passes(serve):
    with serve("server.drain_timeout_s=0.1") as server:
        stream = server.stream(LONG)
        whole = server.connect()
        whole.send(request("POST", TEXT, LONG))
        until(lambda: server.metric("perigee_running_sequences") == 2, "both requests run")
        server.signal("TERM")
        events = stream.to_the_end()
        assert events[-1]["error"]["code"] == "shutdown" and "server.drain_timeout_s" in events[-1]["error"]["message"], events[-1]
        answer = whole.answer()
        assert (answer.status, answer.error()) == (503, "shutdown") and int(answer.headers["retry-after"]) > 0, answer
        assert server.ended() == 3, server.log()
        assert [entry["cut"] for entry in server.entries("server.drain_timeout_s was over")] == [2], server.log()
        assert [entry["finish"] for entry in server.entries("request")] == ["shutdown"] * 2, server.log()


def fault_second_signal(serve):
    with serve("server.drain_timeout_s=600") as server:
        stream = server.stream(LONG)
        server.signal("TERM")
        until(lambda: server.entries("draining"), "the server drains")
        # A repeated SIGTERM is one; a SIGINT forces the end.
        server.signal("TERM")
        server.signal("INT")
        events = stream.to_the_end()
        assert events[-1]["error"]["code"] == "shutdown", events[-1]
        assert server.ended() == 1, server.log()
        assert server.entries("second signal"), server.log()


def fault_terminal_closed(serve):
    master, slave = pty.openpty()

    def own_terminal():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    port = free_port()
    with serve(log=slave, prepare=own_terminal, port=port) as server:
        os.close(slave)
        stream = server.stream(LONG | {"max_tokens": 2000})
        # The kernel sends SIGHUP, and every later write of the log fails.
        os.close(master)
        check_answers(server)
        assert len(stream.to_the_end()) > 0
        assert server.stop() == 0


def fault_step_that_does_not_end(serve):
    with serve("scheduler.step_timeout_s=1") as server:
        server.stream(LONG)
        # A device that hangs: the engine's thread stands still, the others go on.
        with held_thread(server.pid, "perigee-engine"):
            assert server.ended() == 4, server.log()
        assert server.entries("the engine's step does not end (scheduler.step_timeout_s)"), server.log()
        steps = [json.loads(entry["record"]) for entry in server.entries("flight recorder: steps")]
        assert steps and steps[-1]["sequences"] == 1, server.log()


def fault_clock_jump(serve):
    with clock_of_its_own() as (environment, jump):
        key = '{ name = "a", key = "k", requests_per_minute = 3 }'
        settings = ("scheduler.step_timeout_s=30", "server.request_timeout_s=300", f"server.api_keys=[{key}]")
        with serve(*settings, environment=environment) as server:
            ask = lambda: server.post(TEXT, {"prompt": "x", "max_tokens": 2}, key="k")
            begun = ask().json()["created"]
            connection = server.connect()
            connection.send(request("POST", TEXT, LONG | {"max_tokens": 3000, "stream": True}, key="k"))
            assert connection.head().status == 200
            events = connection.events()
            next(events)
            jump(86400)
            later = ask().json()["created"]
            assert 86000 < later - begun < 87000, "the clock did not jump"
            refused = ask()
            # A day of wall time has passed, and no minute.
            assert (refused.status, refused.error()) == (429, "rate_limit_exceeded"), refused
            next(events)
            jump(-86400)
            assert connection.to_the_end()[-1]["choices"][0]["finish_reason"] == "length"
            assert 0 <= server.metric("perigee_since_last_step_seconds") < BOUND_S
            assert server.get("/health").json()["status"] == "ok"


# ---- Disks and folders.


def fault_log_on_a_full_disk(serve):
    with tempfile.TemporaryDirectory() as folder:
        volume = on_a_volume(folder, "size=16k,mode=755", "head -c 1M /dev/zero >fill 2>/dev/null; exec 2>>log")
        with serve("telemetry.log_level=debug", before=volume, log=subprocess.DEVNULL, port=free_port()) as server:
            for _ in range(20):
                check_answers(server)
            assert len(server.stream(LONG | {"max_tokens": 100}).to_the_end()) > 0


def fault_log_at_its_size_limit(serve):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    with tempfile.TemporaryFile() as log, serve("telemetry.log_level=debug", prepare=limit, log=log, port=free_port()) as server:
        for _ in range(20):
            check_answers(server)
        assert os.fstat(log.fileno()).st_size == 4096, "the log has not reached its limit"


def fault_cache_volume_full(serve):
    with tempfile.TemporaryDirectory() as folder:
        volume = on_a_volume(folder, "size=64k,mode=755", "head -c 1M /dev/zero >fill 2>/dev/null")
        with serve(f"kernels.cache_dir={folder}", before=volume) as server:
            check_answers(server)
        check_doctor(serve, volume, folder, 0, "warn  kernel cache", "make room on its volume")


def fault_cache_volume_read_only(serve):
    with tempfile.TemporaryDirectory() as folder:
        volume = on_a_volume(folder, "size=1m,mode=755", 'mount -o remount,ro "$PWD"')
        with serve(f"kernels.cache_dir={folder}", before=volume) as server:
            check_answers(server)
        check_doctor(serve, volume, folder, 0, "warn  kernel cache", "cannot be written", "mount it writable")


def fault_cache_volume_corrupt(serve):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("sm_90a/mla-0.cubin", "sm_90a/.mla.cubin.1.partial", "tuning/0.json", "headers/cuda.h"):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(os.urandom(4096))
        with serve(f"kernels.cache_dir={folder}") as server:
            check_answers(server)
        check_doctor(serve, (), folder, 0, "ok    kernel cache")
        shutil.rmtree(root / "sm_90a")
        (root / "sm_90a").write_text("a file where a folder belongs")
        with serve(f"kernels.cache_dir={folder}") as server:
            check_answers(server)
        with serve(f"kernels.cache_dir={root / 'sm_90a'}") as server:
            check_answers(server)


def fault_model_folder_damaged(serve):
    def truncate(folder):
        weights = folder / "model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)

    def edit(folder, change):
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    cases = [
        ("weights are truncated", truncate, "model.safetensors"),
        ("weights are empty", lambda f: os.truncate(f / "model.safetensors", 0), "model.safetensors"),
        ("weights are noise", lambda f: (f / "model.safetensors").write_bytes(os.urandom(1 << 16)), "model.safetensors"),
        ("weights are missing", lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
        ("configuration is missing", lambda f: (f / "config.json").unlink(), "config.json"),
        ("configuration is no JSON", lambda f: (f / "config.json").write_text("{"), "config.json"),
        ("configuration lacks a size", lambda f: edit(f, lambda c: c["text_config"].pop("hidden_size")), "hidden_size"),
        ("configuration has another size", lambda f: edit(f, lambda c: c["text_config"].update(hidden_size=256)), "config.json"),
        ("configuration has one layer more", lambda f: edit(f, lambda c: c["text_config"].update(num_hidden_layers=6)), "model.layers.5."),
        ("configuration is of another family", lambda f: edit(f, lambda c: c.update(model_type="llama")), "llama"),
        ("vocabulary is missing", lambda f: (f / "tiktoken.model").unlink(), "tiktoken.model"),
        ("vocabulary is damaged", lambda f: (f / "tiktoken.model").write_bytes(os.urandom(4096)), "tiktoken.model"),
        ("weights are a folder", lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()), "model.safetensors"),
        ("template is damaged", lambda f: (f / "chat_template.jinja").write_text("{% for %}"), "chat_template.jinja"),
    ]
    check_refusal(serve, "the folder is not there", 2, ["model.path", "no such folder"], model="/no/such/folder")
    for what, harm, words in cases:
        with tempfile.TemporaryDirectory() as parent:
            folder = copied_model(parent)
            harm(folder)
            check_refusal(serve, what, 1, [words], model=folder)


# ---- Settings.


def fault_wrong_settings(serve):
    cases = [
        ("an unknown key", "[scheduler]\nmax_num_seq = 3\n", ["scheduler.max_num_seq", "max_num_seqs"]),
        ("an unknown section", "[sheduler]\nmax_num_seqs = 3\n", ["sheduler", "scheduler"]),
        ("a wrong type", "[server]\nport = \"many\"\n", ["server.port"]),
        ("a value out of range", "[scheduler]\nmax_num_seqs = 0\n", ["scheduler.max_num_seqs"]),
        ("two mistakes at once", "[server]\nkeep_alive_s = -1\n[kv_cache]\nblock_size = 7\n", ["server.keep_alive_s", "kv_cache.block_size"]),
        ("no TOML", "[server\n", ["TOML"]),
    ]
    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder) / "site.toml"
        for what, text, words in cases:
            site.write_text(text)
            check_refusal(serve, what, 2, [*words, str(site)], arguments=["--config", str(site)])
    check_refusal(serve, "a profile that is not there", 2, ["no-such"], arguments=["--profile", "no-such"])
    check_refusal(serve, "a variable with a mistake", 2, ["server.prot", "PERIGEE_SERVER__PROT"], environment={"PERIGEE_SERVER__PROT": "1"})


def fault_memory_beyond_the_machine(serve):
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    check_refusal(serve, "a cache larger than the memory", 1, ["kv_cache.memory_bytes"], cache=f"kv_cache.memory_bytes={2 * total}")
    check_refusal(serve, "a cache too small for one sequence", 1, ["kv_cache.memory_bytes", "scheduler.max_model_len"],
                  cache="kv_cache.memory_bytes=1MiB")
    # What the plan takes for free and the process does not get.
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    check_refusal(serve, "an allocation that fails", 1, ["kv_cache.memory_bytes"], cache="kv_cache.memory_bytes=6GiB", prepare=limit)


def fault_port_in_use(serve):
    with serve() as first:
        check_refusal(serve, "a second server", 1, ["server.port", f"127.0.0.1:{first.port}"], port=first.port)
        check_answers(first)


def fault_kv_events_port_in_use(serve):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "tcp://127.0.0.1:%d" % taken.getsockname()[1]
        check_refusal(serve, "the endpoint", 1, ["kv_events.endpoint", address], settings=[f"kv_events.endpoint={address}"])
        both = [f"kv_events.endpoint=tcp://127.0.0.1:{free_port()}", f"kv_events.replay_endpoint={address}"]
        check_refusal(serve, "the replay endpoint", 1, ["kv_events.replay_endpoint", address], settings=both)


def fault_reload_of_a_broken_file(serve):
    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder) / "site.toml"
        site.write_text("[guard]\nmode = \"warn\"\n")
        with serve('server.admin_key="root"', arguments=["--config", str(site)]) as server:
            before = server.get("/settings").json()
            for text, words in [
                ("[guard]\nmode = \"loud\"\nhold_tokens = 9999\n", ["guard.mode", "guard.hold_tokens"]),
                ("[guard]\nmod = \"stop\"\n", ["guard.mod"]),
                ("[guard\n", ["site.toml"]),
                (None, ["site.toml"]),
            ]:
                site.unlink() if text is None else site.write_text(text)
                answer = server.post("/admin/reload", {}, key="root")
                assert (answer.status, answer.error()) == (422, "invalid_settings"), (text, answer)
                message = answer.json()["error"]["message"]
                assert "nothing was changed" in message and all(word in message for word in words), (text, message)
                said = len(server.entries("settings not reloaded"))
                server.signal("HUP")
                until(lambda: len(server.entries("settings not reloaded")) > said, "the log says why nothing was reloaded")
                last = server.entries("settings not reloaded")[-1]["message"]
                assert all(word in last for word in words), (text, last)
                assert server.get("/settings").json() == before, f"{text!r} changed something"
                check_answers(server)
            site.write_text("[guard]\nmode = \"stop\"\n")
            answer = server.post("/admin/reload", {}, key="root")
            assert answer.status == 200 and [change["key"] for change in answer.json()["changed"]] == ["guard.mode"], answer


def fault_reload_under_load(serve):
    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder) / "site.toml"

        def write(number):
            keys = ", ".join(f'{{ name = "{name}", key = "{name}" }}' for name in ("load", f"other-{number}"))
            settings = f'[guard]\nmode = "{("warn", "stop")[number % 2]}"\n[server]\napi_keys = [{keys}]\n'
            aside = site.with_suffix(".new")
            aside.write_text(settings)
            # A file that is half written is a mistake, and not the fault that is meant.
            aside.rename(site)

        write(0)
        with serve('server.admin_key="root"', "scheduler.max_num_seqs=8", arguments=["--config", str(site)]) as server:
            over = threading.Event()

            def load(number):
                answered = 0
                with server.connect() as connection:
                    while not over.is_set():
                        body = {"prompt": [number + 10] * 20, "max_tokens": 20, "ignore_eos": True, "stream": number % 2 == 0}
                        answer = connection.ask("POST", TEXT, body, key="load")
                        assert answer.status == 200, answer
                        assert number % 2 or answer.body.endswith(b"data: [DONE]\n\n"), answer
                        answered += 1
                return answered

            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                futures = [pool.submit(load, number) for number in range(12)]
                try:
                    for number in range(1, 41):
                        write(number)
                        if number % 4 == 0:
                            reloaded = len(server.entries("settings reloaded"))
                            server.signal("HUP")
                            until(lambda: len(server.entries("settings reloaded")) > reloaded, "SIGHUP reloads")
                        else:
                            assert server.post("/admin/reload", {}, key="root").status == 200
                finally:
                    over.set()
                answered = [future.result(BOUND_S) for future in futures]
            assert all(answered), f"answered by connection: {answered}"
            assert server.post(TEXT, {"prompt": "x", "max_tokens": 1}, key="other-40").status == 200
            assert server.post(TEXT, {"prompt": "x", "max_tokens": 1}, key="other-39").status == 401
            server.until_idle()
            assert server.metric('perigee_client_requests_total{client="load",status="200"}') == sum(answered)


# ---- Load.


def fault_out_of_kv_blocks(serve):
    # A pool for one sequence of full length and a quarter more.
    settings = ("scheduler.max_model_len=1024", "kv_cache.block_size=32", "scheduler.max_num_seqs=8")
    body = lambda number: LONG | {"prompt": [100 + number] * 100, "max_tokens": 600, "seed": number, "return_token_ids": True}
    with serve(*settings, cache="kv_cache.num_blocks=40") as server:
        def tokens(number):
            answer = server.post(TEXT, body(number))
            assert answer.status == 200, answer
            [choice], usage = answer.json()["choices"], answer.json()["usage"]
            assert (choice["finish_reason"], usage["completion_tokens"], len(choice["token_ids"])) == ("length", 600, 600), answer
            return choice["token_ids"]

        alone = tokens(0)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            together = list(pool.map(tokens, range(12)))
        assert server.metric("perigee_preemptions_total") > 0, "nothing was preempted"
        assert together[0] == alone, "preemption changed a reply"
        assert all(len(reply) == 600 for reply in together)
        server.until_idle()


def fault_queue_full(serve):
    with serve("scheduler.max_num_seqs=1", "scheduler.max_queue_len=2") as server:
        stream = server.stream(LONG)
        waiting = [server.connect() for _ in range(2)]
        for number, connection in enumerate(waiting):
            connection.send(request("POST", TEXT, {"prompt": "x", "max_tokens": 5, "ignore_eos": True}))
            until(lambda: server.metric("perigee_queue_sequences") == number + 1, "the request waits")
        for body in ({"prompt": "x"}, {"prompt": "x", "stream": True}):
            refused = server.post(TEXT, body)
            assert (refused.status, refused.error()) == (429, "queue_full"), refused
            assert 1 <= int(refused.headers["retry-after"]) <= 60, refused
        assert server.metric('perigee_rejected_requests_total{limit="max_queue_len"}') == 2
        stream.close()
        for connection in waiting:
            answer = connection.answer()
            assert answer.status == 200 and answer.json()["usage"]["completion_tokens"] == 5, answer
        server.until_idle()


def fault_request_deadline(serve):
    with serve("server.request_timeout_s=0.3", "scheduler.max_num_seqs=1") as server:
        with server.connect() as first:
            first.send(request("POST", TEXT, LONG | {"stream": True}))
            # It waits behind the first one, and its time passes all the same.
            second = server.post(TEXT, LONG)
            assert (second.status, second.error()) == (504, "deadline_exceeded"), second
            assert first.head().status == 200
            events = first.to_the_end()
            assert events[-1]["error"]["code"] == "deadline_exceeded", events[-1]
        server.until_idle()
        check_answers(server)


def fault_ten_thousand_idle_connections(serve):
    many, limit = 10_000, 10_200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < limit + 1000:
        raise Skipped(f"open files are limited to {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = (f"server.max_connections={limit}", "server.header_read_timeout_s=600")
    idle = []
    try:
        with serve(*settings) as server:
            check_answers(server)
            before = server.memory_bytes()
            connect = lambda: socket.create_connection(("127.0.0.1", server.port), BOUND_S)
            while len(idle) < many:
                idle.append(connect())
            until(lambda: server.metric("perigee_http_connections") == many + 1, "all connections are open")
            check_answers(server)
            per_connection = (server.memory_bytes() - before) / many
            assert per_connection < 32 << 10, f"{per_connection / 1024:.1f} KiB of memory per idle connection"
            while len(idle) < limit:
                idle.append(connect())
            refused = server.connect().answer()
            assert (refused.status, refused.error()) == (503, "too_many_connections"), refused
            assert int(refused.headers["retry-after"]) > 0 and refused.headers["connection"] == "close", refused
            while idle:
                idle.pop().close()
            until(lambda: accepted(server) and server.metric("perigee_http_connections") == 1, "closed connections are let go")
            assert server.metric("perigee_http_refused_connections_total") >= 1
            check_answers(server)
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fault_file_descriptors_used_up(serve):
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with serve(prepare=limit) as server:
        stream = server.stream(LONG | {"max_tokens": 3000})
        with server.connect() as known:
            known.ask("GET", "/health")
            idle = [socket.create_connection(("127.0.0.1", server.port), BOUND_S) for _ in range(100)]
            until(lambda: server.entries("accepting a connection failed"), "the log says that no connection can be accepted")
            # Connections that are open are served.
            assert known.ask("POST", TEXT, {"prompt": "x", "max_tokens": 2}).status == 200
            next(stream.events())
            for connection in idle:
                connection.close()
        assert stream.to_the_end()[-1]["choices"][0]["finish_reason"] == "length"
        check_answers(server)
        server.until_idle()


# ---- Slow clients.


def fault_slow_heads(serve):
    with serve("server.header_read_timeout_s=1") as server:
        head = request("POST", TEXT, {"prompt": "x"})
        slow = {server.connect(): 0 for _ in range(200)}
        silent = server.connect()
        deadline = time.monotonic() + BOUND_S
        while slow:
            assert time.monotonic() < deadline, f"{len(slow)} heads still trickle"
            for connection, sent in list(slow.items()):
                connection.socket.setblocking(False)
                try:
                    connection.send(head[sent % 40:sent % 40 + 1])
                    slow[connection] += 1
                    closed = connection.socket.recv(1000)
                    assert closed == b"" or closed.startswith(b"HTTP/1.1 408 "), closed
                except BlockingIOError:
                    continue
                except ConnectionError:
                    pass
                del slow[connection]
                connection.close()
            check_answers(server)
        assert silent.is_closed() == b""
        until(lambda: server.metric("perigee_http_connections") == 1, "no slow connection is left")


def fault_slow_body(serve):
    with serve("server.body_read_timeout_s=1") as server:
        with server.connect() as connection:
            whole = request("POST", TEXT, {"prompt": "x" * 1000})
            head, body = whole.split(b"\r\n\r\n")
            connection.send(head + b"\r\n\r\n")
            answer = []
            reading = threading.Thread(target=lambda: answer.append(connection.answer()))
            reading.start()
            sent = 0
            while reading.is_alive() and sent < len(body) - 1:
                with contextlib.suppress(ConnectionError):
                    connection.send(body[sent:sent + 1])
                sent += 1
                reading.join(0.05)
            reading.join(BOUND_S)
            assert answer and (answer[0].status, answer[0].error()) == (408, "request_timeout"), answer
            assert answer[0].headers["connection"] == "close" and connection.is_closed() == b""
        server.until_idle()
        check_answers(server)


def fault_slow_readers(serve):
    with serve("server.keep_alive_s=1", "scheduler.max_num_seqs=8") as server:
        check_answers(server)
        before = server.memory_bytes()
        # More bytes than the buffers of a socket take: four replies, and each token with a hundred alternatives.
        body = LONG | {"max_tokens": 2500, "logprobs": 100, "n": 4}
        slow = [server.stream(body, window=4096) for _ in range(2)]
        most = before

        def left():
            nonlocal most
            check_answers(server)
            most = max(most, server.memory_bytes())
            return sum(entry.get("finish") == "client_left" for entry in server.entries("request")) == 2

        until(left, "those who do not read are cut off")
        assert (most - before) >> 20 < 64, f"{(most - before) >> 20} MiB more memory"
        for stream in slow:
            check_cut(stream)
        server.until_idle()


# ---- Bytes and requests.


def fault_malformed_http(serve):
    with serve("server.header_read_timeout_s=1", "server.body_read_timeout_s=1", "server.keep_alive_s=1") as server:
        post = f"POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        cases = [
            "hello\r\n\r\n", "GET\r\n\r\n", "GET /health HTTP/9.9\r\n\r\n", "GET /health HTTP/1.1\r\nno colon\r\n\r\n",
            "GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
            "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "GET /health HTTP/1.1\r\nhost: localhost\r\na: b\0c\r\n\r\n",
            f"{post}content-length: -1\r\n\r\n{{}}", f"{post}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}",
            f"{post}content-length: 99999999999999999999\r\n\r\n{{}}", f"{post}content-length: 50\r\n\r\n{{}}",
            f"{post}transfer-encoding: gzip\r\n\r\n{{}}", f"{post}transfer-encoding: chunked\r\n\r\nzz\r\n{{}}\r\n0\r\n\r\n",
            f"{post}transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{{}}",
            f"{post}transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n",
        ]
        for case in [case.encode("latin-1") for case in cases] + [os.urandom(10_000), bytes(5000)]:
            with server.connect() as connection:
                connection.send(case)
                answer = connection.is_closed()
                status = answer.split(b" ")[1:2]
                assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), (case[:100], status, answer[:300])
        check_answers(server)
        server.until_idle()


def fault_huge_heads(serve):
    with serve() as server:
        for lines in ([f"a{i}: b" for i in range(5000)], ["a: " + "x" * 1_000_000]):
            check_refused_head(server, request("GET", "/health", headers=lines))
        check_refused_head(server, request("GET", "/" + "x" * 1_000_000))
        check_answers(server)


def fault_huge_bodies(serve):
    with serve("server.max_body_bytes=1048576", "vision.max_body_bytes=1048576", "vision.max_image_bytes=100000") as server:
        check_answers(server)
        before = server.memory_bytes()
        for _ in range(20):
            with server.connect() as connection:
                answer = connection.ask("POST", TEXT, b'{"prompt": "' + b"x" * 1_500_000 + b'"}')
                assert (answer.status, answer.error()) == (413, "request_too_large"), answer
        head = f"POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n".encode()
        with server.connect() as connection:
            # Claimed, and not sent.
            connection.send(head + b"content-length: 1000000000000\r\nexpect: 100-continue\r\n\r\n")
            assert connection.head().status == 413
        with server.connect() as connection:
            # No length is claimed, and there is no end.
            connection.send(head + b"transfer-encoding: chunked\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    connection.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
            assert connection.head().status == 413
        grown = server.memory_bytes() - before
        assert grown < 64 << 20, f"{grown >> 20} MiB more memory"
        server.until_idle()
        check_answers(server)


def fault_malformed_json(serve):
    with serve() as server, server.connect() as connection:
        for body in [
            b"", b"{", b"null", b"[1]", b'{"prompt": "x",}', b'{"prompt": NaN}', b'{"prompt": "\xff\xfe"}',
            b"\x00\x01\x02", b"\xef\xbb\xbf{}", b"[" * 200_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
            b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}", b'{"prompt": "x"}{', b'{"prompt": "x", "model": 1e999}',
        ]:
            for path in (TEXT, CHAT, "/v1/messages", "/v1/responses", "/tokenize"):
                answer = connection.ask("POST", path, body)
                assert answer.status == 400 and answer.json()["error"]["message"], (path, body[:60], answer)
        for body, field in [({"messages": "x"}, "messages"), ({"messages": [{"role": "user", "content": "x"}], "n": 0}, "n"), ({"messages": [{}]}, "messages[0].role")]:
            answer = connection.ask("POST", CHAT, body)
            assert answer.status == 400 and field.split("[")[0] in answer.json()["error"]["param"], (body, answer)
        for headers in ([], ["content-type: text/plain"]):
            connection.send("\r\n".join([f"POST {TEXT} HTTP/1.1", "host: localhost", "content-length: 2", *headers, "", "{}"]).encode())
            answer = connection.answer()
            assert (answer.status, answer.error()) == (415, "unsupported_media_type"), answer
        check_answers(server)


def fault_unknown_routes_and_methods(serve):
    with serve() as server, server.connect() as connection:
        for path in ("/v2/models", "/v1/embeddings", "//", "/%00", "/v1/chat", "/../etc/passwd", "/page/../../etc/passwd"):
            answer = connection.ask("GET", path)
            assert (answer.status, answer.error()) == (404, "unknown_url"), (path, answer)
        for method, path, allow in (("GET", TEXT, "POST"), ("DELETE", CHAT, "POST"), ("BREW", TEXT, "POST"), ("PUT", "/metrics", "GET, HEAD")):
            connection.send(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
            answer = connection.answer()
            assert (answer.status, answer.headers["allow"], answer.error()) == (405, allow, "method_not_allowed"), answer
        answer = connection.ask("POST", TEXT, {"prompt": "x", "model": "no-such-model"})
        assert (answer.status, answer.error()) == (404, "model_not_found"), answer
        answer = connection.ask("POST", "/admin/reload", {})
        assert (answer.status, answer.error()) == (403, "no_admin_key"), answer
        connection.send(b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n")
        answer = connection.answer()
        assert (answer.status, answer.error()) == (421, "misdirected_request"), answer
        check_answers(server)


# ---- The model's arithmetic.


def fault_logits_that_are_no_numbers(serve):
    poison = 300
    with tempfile.TemporaryDirectory() as parent:
        folder = copied_model(parent)
        with open(folder / "model.safetensors", "r+b") as weights:
            length, = struct.unpack("<Q", weights.read(8))
            table = json.loads(weights.read(length))["model.embed_tokens.weight"]
            row_bytes = 2 * table["shape"][1]
            weights.seek(8 + length + table["data_offsets"][0] + poison * row_bytes)
            # NaN in bf16: whatever reads this token has no sound logits, whatever does not has.
            weights.write(b"\xc0\x7f" * table["shape"][1])
        with serve(model=folder) as server:
            sound = lambda: server.post(TEXT, LONG | {"max_tokens": 200, "return_token_ids": True}).json()["choices"][0]["token_ids"]
            before = sound()
            bystander = server.stream(LONG | {"max_tokens": 2000})
            broken = {"prompt": [7] * 40 + [poison], "max_tokens": 5}
            for _ in range(3):
                answer = server.post(TEXT, broken)
                assert (answer.status, answer.error()) == (500, "numeric_fault"), answer
            connection = server.connect()
            connection.send(request("POST", TEXT, broken | {"stream": True}))
            head = connection.head()
            if head.status == 200:
                assert connection.to_the_end()[-1]["error"]["code"] == "numeric_fault"
            else:
                connection.rest(head)
                assert (head.status, head.error()) == (500, "numeric_fault"), head
            assert server.metric('perigee_guard_numeric_faults_total{kind="non_finite"}') == 4
            assert bystander.to_the_end()[-1]["choices"][0]["finish_reason"] == "length"
            assert sound() == before, "what was broken is kept"
            server.until_idle()


# ---- What the faults share.


def check_answers(server):
    """An ordinary question gets its answer."""
    question = {"messages": [{"role": "user", "content": "Which port does Perigee listen on?"}], "temperature": 0}
    answer = server.post(CHAT, question)
    assert answer.status == 200 and "8000" in answer.json()["choices"][0]["message"]["content"], answer


def check_cut(stream):
    """A stream that has no proper ending, and so cannot be taken for a whole one."""
    try:
        events = list(stream.events())
    except Cut:
        return
    raise AssertionError(f"the stream ended as if it were whole: {events[-1:]}")


def check_refused_head(server, head):
    """Too large: 431, 414 or 400, or the end of the connection while it is sent."""
    with server.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.send(head)
        answer = connection.is_closed()
        assert answer == b"" or answer.split(b" ")[1] in (b"431", b"414", b"400"), answer[:300]


def check_refusal(serve, what, code, words, settings=(), **more):
    """The start ends with the code, and the log says why with these words."""
    with contextlib.closing(serve.begin(*settings, **more)) as server:
        until(lambda: server.process.poll() is not None or server.entries("ready"), f"{what}: the start ends")
        assert not server.entries("ready"), f"{what}: the server has become ready:\n{server.log()}"
        found = server.ended()
        log = server.log()
        assert found == code, f"{what}: exit code {found}, expected {code}:\n{log}"
        assert "panicked" not in log, f"{what}:\n{log}"
        problem = "\n".join(line for line in server.lines if '"level":"ERROR"' in line or not line.startswith("{"))
        missing = [word for word in words if word not in problem]
        assert not missing, f"{what}: the log does not say {missing}:\n{problem}"


def check_doctor(serve, before, folder, code, *words):
    command = [*before, serve.binary, "doctor", "--set", f"kernels.cache_dir={folder}", "--set", "kv_cache.memory_bytes=64MiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, cwd=tempfile.gettempdir())
    assert done.returncode == code and all(word in done.stdout for word in words), (done.returncode, done.stdout, done.stderr)


def accepted(server):
    """Whether a new connection finds a place."""
    try:
        return server.get("/health").status == 200
    except (Cut, ConnectionError):
        return False


def copied_model(parent):
    """The embedded model's folder, to be damaged."""
    return pathlib.Path(shutil.copytree(MODEL, pathlib.Path(parent) / "model", copy_function=shutil.copyfile))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def on_a_volume(folder, options, then):
    """Words before a command that give it a file system of its own at `folder`, of which nothing is left when the command has ended."""
    script = f'mount -t tmpfs -o "$0" faults "$1" && cd "$1" && {{ {then}; }}; cd /; shift; exec "$@"'
    words = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", script, options, str(folder)]
    probe = "unshare is not installed"
    if shutil.which("unshare"):
        done = subprocess.run([*words, "mountpoint", "-q", str(folder)], capture_output=True, text=True, timeout=BOUND_S)
        probe = "no file system can be mounted" if done.returncode else ""
    if probe:
        raise Skipped(probe)
    return words


@contextlib.contextmanager
def held_thread(pid, name):
    """One thread of a process stands still, by ptrace; it is let go by the end of the process."""
    seize, interrupt, wait_all = 0x4206, 0x4207, 0x40000000
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    tasks = [task for task in pathlib.Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().strip() == name]
    assert len(tasks) == 1, f"{len(tasks)} threads are called {name}"
    thread = int(tasks[0].name)
    if libc.ptrace(seize, thread, None, None) or libc.ptrace(interrupt, thread, None, None):
        raise Skipped(f"a thread cannot be held: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, wait_all)
    # The process is gone once its held thread was waited for, too.
    reaper = threading.Thread(target=os.waitpid, args=(thread, wait_all))
    reaper.start()
    yield
    reaper.join(BOUND_S)


CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *seconds;

__attribute__((constructor)) static void open_offset(void) {
    int file = open(getenv("FAULTS_CLOCK"), O_RDONLY);
    seconds = mmap(0, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += *seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out) *out = precise.tv_sec;
    return precise.tv_sec;
}
"""


@contextlib.contextmanager
def clock_of_its_own():
    """The environment of a process whose wall clock jumps, and the function that makes it jump by seconds. The monotonic clock runs on, as it
    does when an operator or NTP sets the time."""
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        raise Skipped("there is no C compiler for the clock")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "clock.c").write_text(CLOCK)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", root / "clock.so", root / "clock.c"], check=True, timeout=BOUND_S)
        offset = root / "offset"
        offset.write_bytes(struct.pack("l", 0))

        def jump(seconds):
            with open(offset, "r+b") as file:
                file.write(struct.pack("l", seconds))

        yield {"LD_PRELOAD": str(root / "clock.so"), "FAULTS_CLOCK": str(offset)}, jump


class Starter:
    """Starts servers of one binary; what still runs at the end of a fault is killed."""

    def __init__(self, binary):
        self.binary = binary
        self.servers = []

    def begin(self, *settings, **more):
        """A server that may not become ready."""
        self.servers.append(Serving(self.binary, *settings, **more))
        return self.servers[-1]

    def __call__(self, *settings, **more):
        return self.begin(*settings, **more).ready()

    def clear(self):
        while self.servers:
            self.servers.pop().kill()


def main():
    if len(sys.argv) < 2:
        raise SystemExit("usage: check.py BINARY [NAME...]")
    binary, *wanted = sys.argv[1:]
    binary = str(pathlib.Path(binary).resolve())
    begun = time.monotonic()
    outcomes = {"ok": 0, "FAILED": 0, "skipped": 0}
    for name, fault in list(globals().items()):
        title = name.removeprefix("fault_").replace("_", " ")
        if not name.startswith("fault_") or wanted and not any(part in name or part in title for part in wanted):
            continue
        serve, since, words = Starter(binary), time.monotonic(), ""
        try:
            fault(serve)
            outcome = "ok"
        except Skipped as reason:
            outcome, words = "skipped", f": {reason}"
        except Exception as error:
            outcome = "FAILED"
            place = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in place if frame.filename == __file__]
            words = f": {type(error).__name__} in line {lines[-1]}: {error or traceback.format_exc()}"
        finally:
            serve.clear()
        outcomes[outcome] += 1
        print(f"{outcome} {title}{words} ({time.monotonic() - since:.1f} s)", flush=True)
    total = sum(outcomes.values())
    assert total, f"no fault has {wanted} in its name"
    skipped = f", {outcomes['skipped']} could not be made here" if outcomes["skipped"] else ""
    print(f"{outcomes['ok']} of {total} faults were answered as they should be{skipped}, in {time.monotonic() - begun:.0f} s")
    sys.exit(bool(outcomes["FAILED"]))


if __name__ == "__main__":
    main()
