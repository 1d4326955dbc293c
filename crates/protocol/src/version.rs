//! Which version of the protocol has what: how two builds find one that both speak, and what each request needs.

use crate::{ExecRequest, Hello, OLDEST_VERSION, Request, VERSION, WriteRequest};

impl Hello {
    /// The newest version that the agent and this build both speak; `None` when there is none.
    #[must_use]
    pub fn common_version(&self) -> Option<u32> {
        let version = self.newest_version.min(VERSION);
        (version >= self.oldest_version.max(OLDEST_VERSION)).then_some(version)
    }
}

impl Request {
    /// The oldest version that has everything that this request says. An agent of an earlier one would refuse it, or
    /// ignore a part and do something else.
    #[must_use]
    pub fn needs(&self) -> u32 {
        match self {
            Self::Exec(request) => exec_needs(request),
            Self::WriteStdin { bytes, .. } => since(2, bytes.is_some()),
            Self::Write(request) => write_needs(request),
            Self::Kill(_)
            | Self::Detach { .. }
            | Self::Read(_)
            | Self::List(_)
            | Self::Stat { .. }
            | Self::Status
            | Self::Forget { .. } => 1,
            Self::Resize { .. }
            | Self::Remove(_)
            | Self::Move(_)
            | Self::MakeDirectory { .. }
            | Self::Glob(_)
            | Self::Grep(_)
            | Self::Watch(_)
            | Self::Report { .. } => 2,
            // Nobody sends it, and who receives it knows that it is too new.
            Self::Unknown => VERSION,
        }
    }
}

/// Attaching needs nothing: an operation that runs was started by an agent that could.
fn exec_needs(request: &ExecRequest) -> u32 {
    let newer = |spec: &crate::ExecSpec| spec.terminal.is_some() || !spec.role.is_command();
    since(2, request.spec.as_ref().is_some_and(newer))
}

fn write_needs(request: &WriteRequest) -> u32 {
    since(2, request.open_ended || request.expected_version.is_some())
}

fn since(version: u32, used: bool) -> u32 {
    if used { version } else { OLDEST_VERSION }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        ExecLimits, ExecSpec, FileVersion, OperationKey, Program, Reply, Role, StdinMode, TerminalSize,
        Welcome, WriteMode,
    };

    fn hello(oldest_version: u32, newest_version: u32) -> Hello {
        let (agent_version, boot_id) = ("0.0.0".to_owned(), "boot".to_owned());
        Hello { oldest_version, newest_version, agent_version, boot_id, highest_epoch: 0 }
    }

    fn key() -> OperationKey {
        OperationKey { owner: "call".to_owned(), operation: 0 }
    }

    fn command() -> ExecSpec {
        ExecSpec {
            program: Program::Shell { command: "true".to_owned() },
            cwd: "/workspace".to_owned(),
            env: BTreeMap::new(),
            stdin: StdinMode::Null,
            timeout_ms: None,
            grace_ms: 200,
            limits: ExecLimits::default(),
            detached: false,
            terminal: None,
            role: Role::Command,
        }
    }

    fn exec(spec: ExecSpec) -> Request {
        Request::Exec(ExecRequest { key: key(), resume_from: 0, spec: Some(spec) })
    }

    fn write() -> WriteRequest {
        WriteRequest {
            key: key(),
            root: "/workspace".to_owned(),
            path: "a".to_owned(),
            mode: WriteMode::Overwrite,
            size_bytes: 1,
            permissions: None,
            expected_sha256: None,
            expected_version: None,
            open_ended: false,
        }
    }

    #[test]
    fn the_newest_common_version_is_spoken() {
        assert_eq!((OLDEST_VERSION, VERSION), (1, 2), "see `Request::needs` for what the next one adds");
        for (oldest, newest, common) in
            [(1, 1, Some(1)), (1, 2, Some(2)), (2, 2, Some(2)), (1, 9, Some(2)), (3, 9, None), (0, 0, None)]
        {
            assert_eq!(hello(oldest, newest).common_version(), common, "{oldest}..={newest}");
        }
    }

    #[test]
    fn a_request_of_version_1_has_only_the_fields_of_version_1() {
        let spec = json!({
            "program": {"shell": {"command": "true"}}, "cwd": "/workspace", "env": {}, "stdin": "null",
            "timeout_ms": null, "grace_ms": 200, "detached": false,
            "limits": {"cpu_s": null, "processes": null, "open_files": null, "file_bytes": null},
        });
        let key = json!({"owner": "call", "operation": 0});
        let stdin = |bytes| Request::WriteStdin {
            key: self::key(),
            target: self::key(),
            data: "x".to_owned(),
            bytes,
            close: false,
        };
        let requests = [
            (exec(command()), json!({"verb": "exec", "key": key, "resume_from": 0, "spec": spec})),
            (
                Request::Write(write()),
                json!({"verb": "write", "key": key, "root": "/workspace", "path": "a", "mode": "overwrite",
                    "size_bytes": 1, "permissions": null, "expected_sha256": null}),
            ),
            (
                stdin(None),
                json!({"verb": "write_stdin", "key": key, "target": key, "data": "x", "close": false}),
            ),
        ];
        for (request, wire) in requests {
            assert_eq!(request.needs(), 1);
            assert_eq!(serde_json::to_value(&request).expect("serialises"), wire);
        }
        assert_eq!(stdin(Some(vec![255])).needs(), 2);
    }

    #[test]
    fn what_an_agent_of_version_1_would_ignore_needs_version_2() {
        let terminal = Some(TerminalSize { rows: 24, cols: 80 });
        let requests = [
            exec(ExecSpec { terminal, ..command() }),
            exec(ExecSpec { role: Role::Interpreter, ..command() }),
            exec(ExecSpec { role: Role::Request { kernel: key() }, ..command() }),
            Request::Write(WriteRequest { open_ended: true, ..write() }),
            Request::Write(WriteRequest { expected_version: Some(FileVersion::default()), ..write() }),
            Request::Report { key: key() },
            Request::Watch(crate::WatchRequest {
                root: "/tmp".to_owned(),
                path: String::new(),
                recursive: true,
            }),
            Request::MakeDirectory { root: "/tmp".to_owned(), path: "a".to_owned() },
        ];
        for request in requests {
            assert_eq!(request.needs(), 2, "{request:?}");
        }
        let attach = Request::Exec(ExecRequest { key: key(), resume_from: 7, spec: None });
        assert_eq!(attach.needs(), 1, "an operation that runs is attached to by any worker");
    }

    #[test]
    fn answers_of_version_1_are_read_and_those_of_a_newer_version_too() {
        let attached =
            json!({"attached": {"state": "running", "started": true, "offset": 0, "running_ms": 3}});
        let written =
            json!({"written": {"created": true, "size_bytes": 1, "sha256": "ab", "permissions": 420}});
        let stat = json!({"stat": {"kind": "file", "size_bytes": 1, "modified_ms": 5, "permissions": 420}});
        for answer in [attached, written, stat] {
            let mut newer = answer.clone();
            let body = newer.as_object_mut().and_then(|object| object.values_mut().next()).expect("one");
            body["of_version_9"] = Value::Bool(true);
            for answer in [answer, newer] {
                assert!(serde_json::from_value::<Reply>(answer.clone()).is_ok(), "{answer}");
            }
        }
        let welcome = json!({"version": 1, "epoch": 5, "tool_uid": 1_048_600});
        assert!(serde_json::from_value::<Welcome>(welcome).is_ok());
        let unknown = serde_json::from_value::<Request>(json!({"verb": "fly", "how": "high"}));
        assert!(matches!(unknown, Ok(Request::Unknown)));
    }
}
