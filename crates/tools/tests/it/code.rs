//! The code toolkit.

use domain::Code;
use serde_json::json;
use tools::ToolError;
use tools::port::{Background, CommandOutcome, Program};

use crate::world::{World, exited};

#[tokio::test]
async fn code_comes_on_a_descriptor_and_arguments_as_arguments() {
    let world = World::new();
    let arguments =
        json!({"code": "print('secret')", "args": ["a", "b c"], "stdin": "in", "last_expression": true});
    world.call("python_execute", arguments).await.expect("it ran");
    let command = world.commands.lock().expect("no test panicked")[0].clone();
    let Program::Argv { argv, script } = command.program else { panic!("a program") };
    assert_eq!(script.as_deref(), Some("print('secret')"));
    assert_eq!(argv[0], "python3");
    assert_eq!(argv[argv.len() - 3..], ["show", "a", "b c"]);
    assert!(argv.iter().all(|argument| !argument.contains("secret")));
    assert_eq!((command.background, command.stdin.as_deref()), (Background::Never, Some("in")));
}

#[tokio::test]
async fn an_exception_is_named() {
    let stderr = "Traceback (most recent call last):\n  File \"<code>\", line 1, in <module>\n    1/0\nZeroDivisionError: division by zero\n";
    let world = World::new().with_outcome(Ok(CommandOutcome::Ended(exited(1, "", stderr))));
    let result = world.call("python_execute", json!({"code": "1/0"})).await.expect("it ran").result;
    assert_eq!(result.structured["error"], json!({"name": "ZeroDivisionError", "value": "division by zero"}));
    assert!(result.is_error && result.output.ends_with("[exit code 1]"));
}

#[tokio::test]
async fn a_missing_interpreter_is_told() {
    let world = World::new().with_outcome(Err(ToolError::new(Code::StartFailed, "python3: not found")));
    let error = world.call("python_execute", json!({"code": "1"})).await.expect_err("not started");
    assert_eq!(error.code, Code::StartFailed);
    assert!(error.hint.is_some_and(|hint| hint.contains("python3")));
}
