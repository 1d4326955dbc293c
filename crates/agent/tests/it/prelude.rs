//! The prelude: a command in a warm shell, in a new one, and under `bash -c` must not be told apart.

use protocol::StdinMode;

use crate::harness::{Ended, Options, Sandbox, argv, key, shell};

const COMMANDS: [&str; 44] = [
    "echo hi",
    "",
    "   ",
    "# only a comment",
    "exit 7",
    "false",
    "(exit 3)",
    "echo $0 $# $- $LINENO $SHLVL $BASH_SUBSHELL $_",
    "echo one\necho $LINENO",
    "nope_no_such_command",
    "echo a\nnope_no_such_command\necho b",
    "return 3",
    "set -e; false; echo never",
    "set -u; echo $unset_variable; echo never",
    "set -o pipefail; false | true",
    "trap 'echo bye' EXIT; exit 4",
    "trap 'echo term; exit 9' TERM; kill -TERM $$; sleep 1",
    "trap 'echo err' ERR; false; true",
    "trap 'echo dbg $BASH_COMMAND' DEBUG; true",
    "kill -9 $$",
    "kill -PIPE $$",
    "cat <<X\nheredoc $HOME\nX",
    "cat <<'X'\nno $HOME\nX",
    "cat <<-X\n\ttabs\nX\n",
    "declare -p OLDPWD PWD BASH_SOURCE FUNCNAME 2>&1",
    "f() { echo $FUNCNAME $LINENO; return 5; }; f",
    "caller; echo $?",
    "readonly A=1; A=2; echo after",
    "echo ${x:?boom}; echo after",
    "echo $((1/0)); echo after",
    "echo $BASH_EXECUTION_STRING",
    "ls -l /proc/self/fd | awk '{print $9, $10}' | grep -v /proc",
    "ls /proc/$$/fd; true",
    "cat /proc/$$/cmdline | tr '\\0' ' ' | cut -c1-7",
    "env | sort | grep -v '^_='",
    "set | grep -v -e ^BASHPID -e ^PPID -e ^_= -e ^BASH_EXECUTION_STRING -e ^BASH_ARGC -e ^PIPESTATUS -e UID= -e HOSTNAME=",
    "shopt -s extglob\necho @(a|b)",
    "shopt; set -o; umask; ulimit -a; trap; alias; hash",
    "exec 3>x; echo y >&3; cat x; rm x",
    "sleep 0.01 & wait $!; echo $?; jobs",
    "read -r line; echo \"[$line] $?\"",
    "echo out > /dev/stdout; echo err > /dev/stderr; echo x | tee /dev/stderr",
    "exec sh -c 'echo $0; exit 6'",
    "echo 'quo''ted' \"it's\" $'tab\\t' `echo sub` $(echo sub) {1..3} ~",
];

/// Differences that are declared in the prelude: the prefix of a syntax error, and one more `+` in a trace.
const ALIKE_BUT_FOR_PREFIX: [&str; 5] =
    ["if", "echo a; fi", "echo one\nfi", "echo \"unterminated", "set -x; echo traced"];

fn shape(ended: &Ended) -> (String, String, Option<i32>, Option<i32>) {
    let exit = ended.exit();
    (ended.stdout(), ended.stderr(), exit.exit_code, exit.signal)
}

#[test]
fn warm_new_and_plain_bash_behave_alike() {
    let mut cold = Sandbox::start();
    let mut warm = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let (mut cold, mut warm) = (cold.worker(), warm.worker());
    let mut served_warm = 0;
    for command in COMMANDS {
        let plain = shape(&cold.run(argv(&["bash", "-c", command])));
        assert_eq!(shape(&cold.sh(command)), plain, "new shell: {command}");
        warm.until_a_shell_waits();
        let ended = warm.sh(command);
        served_warm += usize::from(ended.is_warm());
        assert_eq!(shape(&ended), plain, "warm shell: {command}");
    }
    assert!(served_warm * 2 > COMMANDS.len(), "only {served_warm} were served by a warm shell");
    for command in ALIKE_BUT_FOR_PREFIX {
        let (stdout, stderr, code, signal) = shape(&cold.run(argv(&["bash", "-c", command])));
        let stderr = stderr.replace("bash: -c: line", "bash: eval: line").replace("+ ", "++ ");
        let expected = (stdout, stderr, code, signal);
        assert_eq!(shape(&cold.sh(command)), expected, "new shell: {command}");
        assert_eq!(shape(&warm.sh(command)), expected, "warm shell: {command}");
    }
}

#[test]
fn a_warm_shell_serves_one_command_and_leaks_nothing_into_the_next() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    for round in 0..20 {
        let ended = worker.sh(&format!(
            "echo \"[$LEAK]\"; pwd; ls /proc/self/fd | wc -l; export LEAK={round}; cd /tmp; exec 9>/dev/null; LEAK2=1; set -e; umask 0"
        ));
        assert_eq!(ended.stdout(), "[]\n/workspace\n4\n");
    }
}

#[test]
fn files_that_shells_read_at_start_do_not_hijack_a_command() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    let plant = "for f in .bashrc .bash_profile .profile .bash_login .inputrc bash; do echo 'echo hijacked' > ~/$f; chmod +x ~/$f; done; export BASH_ENV=~/.bashrc PATH=~:$PATH";
    worker.sh(plant);
    for _ in 0..3 {
        assert_eq!(worker.sh("echo clean").stdout(), "clean\n");
    }
    let mut command = shell("echo own; bash -c true");
    command.env.insert("BASH_ENV".to_owned(), "/workspace/.bashrc".to_owned());
    let ended = worker.run(command);
    assert_eq!(ended.stdout(), "hijacked\nown\nhijacked\n", "what the caller asks for is done");
    assert!(!ended.is_warm());
}

#[test]
fn a_dead_or_stopped_warm_shell_is_replaced_without_running_anything_twice() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    for (round, attack) in
        ["kill -9 -1", "kill -STOP -1", "kill -9 -1", "kill -STOP -1"].into_iter().enumerate()
    {
        let mut command = shell(&format!("echo up; read -r go; {attack}"));
        command.stdin = StdinMode::Open;
        let stream = worker.exec(&key(&format!("attack-{round}")), 0, Some(command));
        worker.until(stream, "up");
        // The attacker itself, and the next shell that waits.
        while worker.status().processes < 2 {}
        let mut go = bytes::BytesMut::new();
        protocol::encode_data(&mut go, stream, 0, 0, b"\n");
        worker.send_bytes(&go);
        assert_eq!(worker.follow_on(stream).code(), Some(0));
        let mut command = shell(&format!("cat; echo {round} >> ledger; cat ledger"));
        command.stdin = StdinMode::Text("its input\n".to_owned());
        let ended = worker.run(command);
        let ledger: String = (0..=round).map(|round| format!("{round}\n")).collect();
        assert_eq!(ended.stdout(), format!("its input\n{ledger}"), "{attack}");
        // In the place of a dead one another may wait by now; a stopped one is taken, and given up when it does not begin.
        assert!(attack.contains("-9") || !ended.is_warm(), "{attack} never met the warm shell");
    }
}
