//! The parts that are counted: what a call needs of the processor alone, without a database, a socket or a process.

use std::collections::BTreeMap;
use std::hint::black_box;

use bytes::BytesMut;
use domain::event::OutputPiece;
use domain::policy::{Layer, Layered, Policy, Question, evaluate};
use domain::{CallEnded, CallId, CallResult, CallStatus, CallUsage, EndReason, Event, EventBody, StreamName};
use protocol::{
    Decoder, ExecLimits, ExecRequest, ExecSpec, FrameKind, OperationKey, Program, Request, Role, StdinMode,
    decode_data, encode, encode_data,
};
use serde_json::{Value, json};
use tools::Catalog;

/// Something that is counted.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Instructions that it should not exceed: a fifth more than when this was written. Told, and nothing fails by it.
    pub(crate) threshold: u64,
    /// Makes what it needs, and the work itself.
    pub(crate) prepare: fn() -> Box<dyn FnMut()>,
}

/// All of them.
pub(crate) const ALL: &[Part] = &[
    Part { name: "arguments of bash are validated", threshold: 7_600, prepare: arguments },
    Part { name: "policy of four layers decides", threshold: 2_000, prepare: policy },
    Part { name: "a call is admitted (arguments, policy and limits)", threshold: 11_800, prepare: admission },
    Part { name: "an event of 64 bytes of output as SSE", threshold: 16_300, prepare: || output(64) },
    Part { name: "an event of 64 KiB of output as SSE", threshold: 1_032_400, prepare: || output(65_536) },
    Part { name: "the end of a call as SSE", threshold: 59_100, prepare: end },
    Part { name: "a request to the agent, encoded and decoded", threshold: 29_900, prepare: request },
    Part { name: "a frame of 64 bytes, encoded and decoded", threshold: 800, prepare: || frame(64) },
    Part { name: "a frame of 64 KiB, encoded and decoded", threshold: 158_200, prepare: || frame(65_536) },
];

fn bash() -> Value {
    json!({"command": "cargo test --workspace", "timeout": 60_000, "description": "Runs the tests"})
}

fn arguments() -> Box<dyn FnMut()> {
    let (catalog, arguments) = (Catalog::standard(), bash());
    Box::new(move || drop(black_box(catalog.admit("bash", black_box(arguments.clone())))))
}

fn policies() -> [Policy; 4] {
    let read = |document: Value| serde_json::from_value(document).expect("a policy");
    [
        read(json!({"limits": {"sessions": 100, "running_calls": 64}})),
        read(
            json!({"tools": {"disabled": ["toolkit:terminals", "node_execute"]}, "limits": {"timeout_ms": 600_000}}),
        ),
        read(json!({"tools": {"enabled": ["toolkit:files", "toolkit:shell", "bash", "python_execute"]}})),
        read(json!({"tools": {"per_tool": {"bash": {"limits": {"timeout_ms": 120_000}}}}})),
    ]
}

fn layers(policies: &[Policy; 4]) -> [Layered<'_>; 4] {
    let names = [Layer::Installation, Layer::Tenant, Layer::Key, Layer::Session];
    std::array::from_fn(|n| Layered { layer: names[n], policy: &policies[n] })
}

const QUESTION: Question<'static> = Question { tool: "bash", toolkit: "shell" };

fn policy() -> Box<dyn FnMut()> {
    let policies = policies();
    Box::new(move || drop(black_box(evaluate(&layers(black_box(&policies)), QUESTION))))
}

fn admission() -> Box<dyn FnMut()> {
    let (catalog, policies, body) = (Catalog::standard(), policies(), bash().to_string());
    Box::new(move || {
        let arguments: Value = serde_json::from_str(black_box(&body)).expect("JSON");
        let decision = evaluate(&layers(&policies), QUESTION);
        drop(black_box((catalog.admit("bash", arguments), decision)));
    })
}

fn event(body: EventBody) -> Event {
    let call_id = CallId::from_uuid(uuid::Uuid::from_u128(7));
    Event { call_id, seq: 3, at: chrono::DateTime::UNIX_EPOCH, body }
}

fn output(length: usize) -> Box<dyn FnMut()> {
    let bytes = b"a line of output that a test has written\n".iter().copied().cycle().take(length).collect();
    let piece = OutputPiece { log_offset: 0, stream: StreamName::Stdout, offset: 0, bytes };
    let event = event(EventBody::Output(piece));
    Box::new(move || drop(black_box(api::encode_event(black_box(&event)))))
}

fn end() -> Box<dyn FnMut()> {
    let result = CallResult {
        output: "hi\n".to_owned(),
        structured: json!({"stdout": "hi\n", "stderr": "", "exit_code": 0}),
        exit_code: Some(0),
        ..CallResult::default()
    };
    let event = event(EventBody::Ended {
        status: CallStatus::Succeeded,
        result: Some(result),
        error: None,
        ended: CallEnded::because(EndReason::Exited),
        usage: CallUsage::default(),
    });
    Box::new(move || drop(black_box(api::encode_event(black_box(&event)))))
}

fn request() -> Box<dyn FnMut()> {
    let key = OperationKey { owner: "call_01jd".to_owned(), operation: 0 };
    let spec = ExecSpec {
        program: Program::Shell { command: "cargo test --workspace".to_owned() },
        cwd: "/workspace".to_owned(),
        env: BTreeMap::from([("CI".to_owned(), "1".to_owned())]),
        stdin: StdinMode::Null,
        timeout_ms: Some(120_000),
        grace_ms: 200,
        limits: ExecLimits::default(),
        detached: false,
        terminal: None,
        role: Role::Command,
    };
    let request = Request::Exec(ExecRequest { key, resume_from: 0, spec: Some(spec) });
    let mut decoder = Decoder::default();
    Box::new(move || {
        let payload = serde_json::to_vec(black_box(&request)).expect("JSON");
        encode(decoder.buffer(), FrameKind::Request, 5, &payload);
        let frame = decoder.next_frame().expect("a frame").expect("a whole one");
        drop(black_box(serde_json::from_slice::<Request>(&frame.payload)));
    })
}

fn frame(length: usize) -> Box<dyn FnMut()> {
    let content = vec![b'x'; length];
    let mut decoder = Decoder::default();
    Box::new(move || {
        let mut wire = BytesMut::new();
        encode_data(&mut wire, 5, 4_096, 1, black_box(&content));
        decoder.buffer().extend_from_slice(&wire);
        let frame = decoder.next_frame().expect("a frame").expect("a whole one");
        drop(black_box(decode_data(frame.payload)));
    })
}
