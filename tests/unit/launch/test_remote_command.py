import shlex
import subprocess
import sys

from tfdist.launch.remote_command import agent_line, carried_environment, ssh_command


def test_the_users_options_come_first():
    command = ssh_command("ssh -i 'my key'", "[fd00::1]", "cd / && true")

    assert command == [
        *("ssh", "-i", "my key", "-T", "-o", "BatchMode=yes", "fd00::1"),
        "cd / && true",
    ]


def test_slurm_reaches_its_nodes_by_steps():
    command = ssh_command("/opt/bin/srun --mem=0", "n8", "cd / && true")

    assert command[:2] == ["/opt/bin/srun", "--mem=0"]
    assert command[-4:] == ["--nodelist=n8", "sh", "-c", "cd / && true"]


def test_any_folder_and_path_can_be_written(tmp_path):
    folder = tmp_path / "a b'c"
    folder.mkdir()
    show = "import os, sys; print(os.getcwd(), os.environ['PYTHONPATH'], sys.argv)"
    (folder / "python").write_text(f"#!{sys.executable}\n{show}\n")
    (folder / "python").chmod(0o755)

    line = agent_line(str(folder), f"{folder}/python", "/x y")
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, check=True
    )

    words = [f"{folder}/python", "-m", "tfdist.launch.agent"]
    assert done.stdout == f"{folder} /x y {words}\n"
    assert shlex.split(agent_line("/", "/python", None))[:3] == ["cd", "/", "&&"]


def test_what_belongs_to_a_host_or_login_stays_there():
    kept = {"PATH": "/bin", "TF_CPP_MIN_LOG_LEVEL": "2", "USERNAME_OF_DATA": "me"}
    own = {"HOME": "/root", "USER": "me", "SSH_AUTH_SOCK": "/x", "XDG_DATA": "/y"}

    own |= {"SLURM_PROCID": "0", "SLURMD_NODENAME": "n8", "PMIX_RANK": "0"}

    assert carried_environment(kept | own | {"_": "x", "DBUS_X": "1"}) == kept
