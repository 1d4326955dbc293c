//! Opens an operation on a session of the caller's: the tenant is checked here, and again where the session is.

use std::time::Duration;

use domain::exchange::{ExchangeError, Opening, Operation};
use domain::limits::EXCHANGE_OPEN_MS;
use domain::{Code, SessionId, TenantContext};
use tokio::time::{Instant, sleep};

use crate::exchange::Duplex;
use crate::problem::Problem;
use crate::service::refusal;
use crate::state::ApiState;

/// Pause before the worker of a session is looked for again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl ApiState {
    /// Opens an operation, wherever the session's worker is. A session that is starting, or just changes its worker, is
    /// waited for.
    ///
    /// # Errors
    /// `not_found`, `session_ended`, `worker_unavailable`, or what the worker says.
    pub async fn open_exchange(
        &self,
        context: &TenantContext,
        session_id: SessionId,
        operation: Operation,
    ) -> Result<Duplex, Problem> {
        let deadline = Instant::now() + Duration::from_millis(EXCHANGE_OPEN_MS);
        loop {
            let place = self.store.session_place(context, session_id).await?;
            if let Some(end) = &place.end {
                return Err(refusal::session_ended(end));
            }
            let opened = match place.worker() {
                Ok(worker) => {
                    let tenant_id = context.tenant_id();
                    let opening = Opening { tenant_id, session_id, operation: operation.clone() };
                    self.ports.exchange.open(worker, opening).await
                }
                Err(error) => Err(error),
            };
            match opened {
                Ok(duplex) => return Ok(duplex),
                Err(error) if error.has_not_begun() && Instant::now() < deadline => sleep(LOOK_AGAIN).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What an operation came to. A sandbox that went away with its session is the session's end, and no failure.
    pub(crate) async fn come_to<T>(
        &self,
        context: &TenantContext,
        session_id: SessionId,
        outcome: Result<T, impl Into<Problem>>,
    ) -> Result<T, Problem> {
        let problem: Problem = match outcome {
            Ok(done) => return Ok(done),
            Err(error) => error.into(),
        };
        if problem.code != Code::SandboxLost {
            return Err(problem);
        }
        let place = self.store.session_place(context, session_id).await;
        let end = place.ok().and_then(|place| place.end);
        Err(end.map_or(problem, |end| refusal::session_ended(&end)))
    }
}

impl From<ExchangeError> for Problem {
    fn from(error: ExchangeError) -> Self {
        match error.code {
            Code::Internal => Self::internal("exchange with the worker", &error.message),
            code => {
                let problem = Self::new(code, error.message);
                error.details.into_iter().fold(problem, |problem, (name, value)| problem.with(&name, value))
            }
        }
    }
}
