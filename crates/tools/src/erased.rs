//! A tool whose types are forgotten: what the catalogue keeps.

use async_trait::async_trait;
use domain::{CallResult, Code};
use serde::Deserialize;
use serde_json::Value;

use crate::{ArgumentProblem, Context, Descriptor, Finished, Spec, Tool, ToolError, schema};

#[async_trait]
pub(crate) trait Erased: Send + Sync {
    fn spec(&self) -> &'static Spec;
    fn descriptor(&self) -> Descriptor;
    fn checks_a_pattern(&self) -> bool;
    fn check(&self, arguments: &Value) -> Vec<ArgumentProblem>;
    async fn run(&self, cx: &Context, arguments: Value) -> Result<Finished, ToolError>;
}

/// Makes an [`Erased`] of a [`Tool`].
pub(crate) struct Of<T>(pub(crate) T);

#[async_trait]
impl<T: Tool> Erased for Of<T> {
    fn spec(&self) -> &'static Spec {
        const { &T::SPEC }
    }

    fn descriptor(&self) -> Descriptor {
        Descriptor::new(&T::SPEC, schema::input::<T::Input>(), schema::output::<T::Output>())
    }

    fn checks_a_pattern(&self) -> bool {
        T::CHECKS_A_PATTERN
    }

    fn check(&self, arguments: &Value) -> Vec<ArgumentProblem> {
        match T::Input::deserialize(arguments) {
            Ok(input) => self.0.check(&input),
            Err(error) => vec![ArgumentProblem::new("", error.to_string())],
        }
    }

    async fn run(&self, cx: &Context, arguments: Value) -> Result<Finished, ToolError> {
        let input = serde_json::from_value(arguments)
            .map_err(|error| ToolError::new(Code::InvalidArguments, format!("{}: {error}", T::SPEC.name)))?;
        let output = self.0.run(cx, input).await?;
        let structured = serde_json::to_value(&output.structured).map_err(|error| {
            ToolError::new(
                Code::PlatformError,
                format!("{}: its result does not serialise: {error}", T::SPEC.name),
            )
        })?;
        let result = CallResult {
            is_error: output.is_error,
            output: output.output,
            structured,
            content: output.content,
            exit_code: output.exit_code,
            signal: output.signal,
            system: output.system,
            truncated: output.truncated,
            cached: false,
        };
        Ok(Finished { result, conclusion: output.conclusion })
    }
}
