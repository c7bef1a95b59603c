"""``python -m emulator.pyverbs``: programs run unchanged, and reach each other by GID."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from emulator.pyverbs import __main__ as command
from tests.support.agent_process import LIMIT_S, spawn

MODULE = "emulator.pyverbs"


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a program."""
    process = spawn(*arguments, module=MODULE)
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "unittest", "-v"], ["-m", "unittest", "--", "-v"]),
        (["--mtu", "1024", "-c", "x", "--mtu"], ["--mtu", "1024", "-c", "x", "--", "--mtu"]),
        (["--mtu=1024", "-m", "x"], ["--mtu=1024", "-m", "x", "--"]),
        (["prog.py", "-m", "x"], ["prog.py", "-m", "x"]),
        (["--", "-m"], ["--", "-m"]),
        (["-m"], ["-m", "--"]),
        ([], []),
    ],
)
def test_options_end_where_the_program_begins(words: list[str], expected: list[str]) -> None:
    assert command._split(words) == expected


def test_a_program_finds_its_arguments_and_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 7\n", encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            import neighbour
            from pyverbs.device import get_device_list

            if __name__ == "__main__":
                print(sys.argv[1:], neighbour.VALUE, len(get_device_list()))
                sys.exit(3)
            """
        ),
        encoding="utf-8",
    )
    code, out, errors = run("--devices", "2", str(program), "--mtu", "-x")
    assert (code, out.strip()) == (3, "['--mtu', '-x'] 7 2"), errors


def test_a_text_and_a_module_run_as_the_interpreter_runs_them(tmp_path: Path) -> None:
    code, out, errors = run("-c", "import sys, pyverbs.cq; print(sys.argv, __name__)", "-v")
    assert (code, out.strip()) == (0, "['-c', '-v'] __main__"), errors
    code, out, errors = run("-m", "json.tool", "--help")
    assert code == 0, errors
    assert "usage" in out


def test_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text("devices: 3\nmtu_bytes: 512\n", encoding="utf-8")
    show = (
        "import pyverbs.device as d; devices = d.get_device_list(); "
        "print(len(devices), d.Context(name=devices[-1].name.decode()).query_port(1).active_mtu)"
    )
    code, out, errors = run("--config", str(path), "--devices", "2", "-c", show)
    assert (code, out.strip()) == (0, "2 2"), errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name a program"),
        (["no-such-program.py"], "there is no program"),
        (["--mtu", "1000", "-c", "pass"], "mtu_bytes"),
        (["--config", "no-such-file.yaml", "-c", "pass"], "no-such-file.yaml"),
        (["--speed", "1", "x.py"], "--speed"),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["emulator.pyverbs", *arguments])
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


PEER = textwrap.dedent(
    """
    import json, sys, time
    from pyverbs.addr import AHAttr, GID, GlobalRoute
    from pyverbs.cq import CQ
    from pyverbs.device import Context, get_device_list
    from pyverbs.libibverbs_enums import ibv_access_flags, ibv_mtu, ibv_qp_type
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
    from pyverbs.wr import SGE, RecvWR, SendWR

    role = sys.argv[1]
    context = Context(name=get_device_list()[0].name.decode())
    pd, cq = PD(context), CQ(context, 16)
    mr = MR(pd, 1 << 16, ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
    qp = QP(pd, QPInitAttr(ibv_qp_type.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1)),
            QPAttr(port_num=1))
    print(json.dumps({"gid": context.query_gid(1, 0).gid, "qpn": qp.qp_num}), flush=True)
    peer = json.loads(sys.stdin.readline())
    attr = QPAttr(port_num=1)
    attr.path_mtu = ibv_mtu.IBV_MTU_1024
    attr.dest_qp_num = peer["qpn"]
    attr.rq_psn = attr.sq_psn = 0xFFFFFE
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 1
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(GID(peer["gid"])))
    qp.to_rts(attr)

    def complete():
        end = time.monotonic() + 60
        while time.monotonic() < end:
            count, completions = cq.poll(1)
            if count:
                return completions[0].status
        return "nothing"

    element = SGE(mr.buf, mr.length, mr.lkey)
    if role == "server":
        qp.post_recv(RecvWR(1, 1, [element]))
        print("ready", flush=True)
        status = complete()
        print(json.dumps({"status": status, "sum": sum(mr.read(mr.length, 0))}), flush=True)
    else:
        sys.stdin.readline()
        mr.write(bytes(range(256)) * 256, mr.length)
        qp.post_send(SendWR(2, num_sge=1, sg=[element]))
        print(json.dumps({"status": complete()}), flush=True)
    sys.stdin.readline()
    """
)


def line_of(process: Any) -> str:
    line: str = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate(timeout=LIMIT_S)[1])
    return line


def tell(process: Any, text: str) -> None:
    process.stdin.write(text)
    process.stdin.flush()


@pytest.mark.parametrize("options", [[], ["--faults", "drop=0.05,reorder=0.05", "--seed", "7"]])
def test_two_programs_in_two_processes_reach_each_other_by_gid(options: list[str]) -> None:
    server, client = (
        spawn(*options, "-c", PEER, role, module=MODULE) for role in ("server", "client")
    )
    with server, client:
        introductions = [line_of(each) for each in (server, client)]
        assert len({json.loads(each)["gid"] for each in introductions}) == 2
        tell(server, introductions[1])
        tell(client, introductions[0])
        assert line_of(server) == "ready\n"
        tell(client, "go\n")
        assert json.loads(line_of(client)) == {"status": 0}
        assert json.loads(line_of(server)) == {"status": 0, "sum": sum(range(256)) * 256}
        for each in (server, client):
            assert each.communicate("\n", timeout=LIMIT_S)[1] == ""
            assert each.returncode == 0


def test_two_forked_children_reach_each_other_by_gid(tmp_path: Path) -> None:
    """Both have inherited the import hook and an open device, which stays with the parent."""
    program = tmp_path / "family.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import io, json, os, sys
            from pyverbs.device import Context, get_device_list

            context = Context(name=get_device_list()[0].name.decode())
            code = {PEER!r}
            pipes = {{role: (os.pipe(), os.pipe()) for role in ("server", "client")}}
            children = []
            for role, ((child_in, _), (_, child_out)) in pipes.items():
                pid = os.fork()
                if pid == 0:
                    sys.argv = ["-c", role]
                    sys.stdin, sys.stdout = os.fdopen(child_in), os.fdopen(child_out, "w")
                    exec(compile(code, role, "exec"), {{"__name__": "__main__"}})
                    sys.stdout.flush()
                    os._exit(0)
                children.append(pid)
            out = {{role: os.fdopen(p[1][0]) for role, p in pipes.items()}}
            into = {{role: os.fdopen(p[0][1], "w", buffering=1) for role, p in pipes.items()}}
            hello = {{role: out[role].readline() for role in pipes}}
            into["server"].write(hello["client"])
            into["client"].write(hello["server"])
            assert out["server"].readline() == "ready\\n"
            into["client"].write("go\\n")
            print(json.loads(out["client"].readline())["status"])
            print(json.loads(out["server"].readline())["status"])
            for role in pipes:
                into[role].write("\\n")
            print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
            """
        ),
        encoding="utf-8",
    )
    code, out, errors = run(str(program))
    assert (code, out.split("\n")) == (0, ["0", "0", "[0, 0]", ""]), errors
