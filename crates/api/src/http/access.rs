//! Who may call which operation: a table made from the OpenAPI document at start, closed by default.
//!
//! # Design notes
//!
//! The document is the only place where a scope is declared (`security` of each operation), so what clients read is what is
//! enforced. An operation without a declaration that is not on [`PUBLIC`] keeps the process from starting; a route that is not in the
//! table is refused. The tenant's and the operator's world are two types, and no handler can take the wrong one by accident: the
//! extractors [`Tenant`] and [`Operator`] find only what this layer put there.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::{Code, OperatorContext, Scope, TenantContext, limits};
use serde_json::Value;
use store::{AuditRow, Authenticated};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::address::ClientAddress;
use super::cut::judged;
use super::observe::{Joined, began, join};
use super::turns::Turns;
use super::under_way::Place;
use crate::problem::Problem;
use crate::service::access::{self, Credential};
use crate::service::rates::{self, Quotas};
use crate::service::vigil::{self, Carrier};
use crate::state::{ApiError, ApiState};

/// Operations that anybody may call.
pub(crate) const PUBLIC: &[&str] = &[
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
    "GET /docs",
    "GET /docs/{file}",
    "GET /problems",
    "GET /problems/{code}",
];

/// What an operation asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing.
    Public,
    /// Any valid credential.
    Anyone,
    /// A scope.
    Scope(Scope),
    /// A scope, or a signed token for the object in the path.
    ScopeOrToken(Scope),
}

/// What each operation asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    operations: HashMap<(Method, String), Access>,
}

impl Table {
    /// Reads the table from a document.
    pub(crate) fn of(document: &Value) -> Result<Self, ApiError> {
        let mut table = Self::default();
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in item.as_object().into_iter().flatten() {
                let Ok(method) = Method::from_str(&method.to_ascii_uppercase()) else { continue };
                let name = format!("{method} {path}");
                let declared = declared(&operation["security"]);
                let access = match declared {
                    Some(access) => access,
                    None if PUBLIC.contains(&name.as_str()) => Access::Public,
                    None => return Err(ApiError::Undeclared { operation: name }),
                };
                table.operations.insert((method, path.clone()), access);
            }
        }
        Ok(table)
    }

    pub(crate) fn get(&self, method: &Method, path: &str) -> Option<Access> {
        let method = if method == Method::HEAD { Method::GET } else { method.clone() };
        self.operations.get(&(method, path.to_owned())).copied()
    }
}

fn declared(security: &Value) -> Option<Access> {
    let requirements = security.as_array()?;
    let scopes = requirements.iter().find_map(|requirement| requirement["bearer"].as_array())?;
    let by_token = requirements.iter().any(|requirement| requirement.get("stream_token").is_some());
    match scopes.as_slice() {
        [] => Some(Access::Anyone),
        [one] => {
            let scope = one.as_str()?.parse().ok()?;
            Some(if by_token { Access::ScopeOrToken(scope) } else { Access::Scope(scope) })
        }
        _ => None,
    }
}

/// What the layer needs.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) state: ApiState,
    pub(crate) table: Arc<Table>,
    /// Who waits for what before it is known whose request it is.
    pub(crate) turns: Turns,
    /// Places of the process for requests that are somebody's.
    pub(crate) places: Arc<Semaphore>,
}

/// The layer: finds out who asks and whether they may, before anything of the request is read.
pub(crate) async fn authorize(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let access =
        parts.extensions.get::<MatchedPath>().and_then(|path| gate.table.get(&parts.method, path.as_str()));
    let admitted = match access {
        Some(Access::Public) => return next.run(Request::from_parts(parts, body)).await,
        Some(access) => admit(&gate, access, &parts).await,
        None => Err(Problem::new(Code::InsufficientScope, "This operation is not open.").into()),
    };
    let (mut response, quotas) = match admitted {
        Ok(Admitted { authenticated, credential, needs, quotas, place, share }) => {
            match authenticated {
                Authenticated::Tenant(context) => drop(parts.extensions.insert(Tenant(context))),
                Authenticated::Operator(context) => drop(parts.extensions.insert(Operator(context))),
            }
            parts.extensions.insert(credential.clone());
            let state = &gate.state;
            let trace = join(state, began(&parts.headers));
            let handled = crate::trace::within(trace, next.run(Request::from_parts(parts, body)));
            let mut response = tokio::select! {
                biased;
                response = handled => judged(state, credential, needs, response),
                () = vigil::until_refused(state, &credential, needs.as_slice()) => {
                    access::unauthenticated().into_response()
                }
            };
            response.extensions_mut().insert(Joined);
            drop((place, share));
            (response, quotas)
        }
        Err(Refused { problem, quotas }) => (problem.into_response(), quotas),
    };
    // A handler that took more (a batch) says what is left after it.
    if let Some(quotas) = response.extensions_mut().remove::<Quotas>().or(quotas) {
        super::rates::write(&quotas, response.headers_mut());
    }
    response
}

/// Who may go on, and what they have left.
struct Admitted<'a> {
    authenticated: Authenticated,
    credential: Credential,
    /// The scope without which it may not go on.
    needs: Option<Scope>,
    quotas: Option<Quotas>,
    /// Its place among the requests that are under way.
    place: SemaphorePermit<'a>,
    /// It is one of its tenant's share of them.
    share: Option<Place>,
}

/// Why somebody may not, and what they have left.
struct Refused {
    problem: Problem,
    quotas: Option<Quotas>,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { problem, quotas: None }
    }
}

async fn admit<'a>(gate: &'a Gate, access: Access, parts: &Parts) -> Result<Admitted<'a>, Refused> {
    let state = &gate.state;
    let address = parts.extensions.get::<ClientAddress>().map(|address| address.0);
    let path = parts.uri.path();
    let mut credential = match bearer(&parts.headers)? {
        Some(text) => Credential::bearer(state, text, address),
        None => match (access, token(parts)) {
            (Access::ScopeOrToken(_), Some(token)) => Credential::token(token, address),
            _ => return Err(access::unauthenticated().into()),
        },
    }
    .on(parts.extensions.get::<Carrier>().cloned());
    // A token is for one thing: on the path of another it is none.
    let bound = access::bound_to(state, &credential);
    if bound.is_some_and(|target| !path.starts_with(&target.prefix())) {
        return Err(access::unauthenticated().into());
    }
    let wait = Duration::from_millis(limits::AUTHENTICATION_WAIT_MS);
    let Ok(turn) = tokio::time::timeout(wait, gate.turns.wait(address)).await else {
        let problem = Problem::new(
            Code::Capacity,
            "As many credentials of this address as may are being looked at, and none was done in time.",
        );
        return Err(problem.retry_after_ms(1_000).into());
    };
    let authenticated = access::authenticate(state, &mut credential).await?;
    drop(turn);
    let Ok(place) = gate.places.try_acquire() else {
        let problem = Problem::new(Code::Capacity, "This process handles as many requests as it takes.");
        return Err(problem.retry_after_ms(1_000).into());
    };
    let quotas = match &authenticated {
        Authenticated::Tenant(context) => Some(
            rates::take(state, context)
                .map_err(|(quotas, problem)| Refused { problem, quotas: Some(quotas) })?,
        ),
        Authenticated::Operator(_) => None,
    };
    let needs = match access {
        Access::Public | Access::Anyone => None,
        Access::Scope(scope) | Access::ScopeOrToken(scope) => Some(scope),
    };
    let allowed = match needs {
        None => Ok(()),
        Some(scope) => {
            let operation = format!("{} {path}", parts.method);
            require(state, &authenticated, scope, operation).await
        }
    };
    let share = match (&authenticated, allowed) {
        (_, Err(problem)) => Err(problem),
        (Authenticated::Operator(_), Ok(())) => Ok(None),
        (Authenticated::Tenant(context), Ok(())) => state.under_way.enter(context.tenant_id()).map(Some),
    };
    match share {
        Ok(share) => Ok(Admitted { authenticated, credential, needs, quotas, place, share }),
        Err(problem) => Err(Refused { problem, quotas }),
    }
}

async fn require(
    state: &ApiState,
    authenticated: &Authenticated,
    scope: Scope,
    operation: String,
) -> Result<(), Problem> {
    match authenticated {
        Authenticated::Operator(_) if scope == Scope::Operator => return Ok(()),
        Authenticated::Tenant(context) if context.has(scope) && scope != Scope::Operator => return Ok(()),
        Authenticated::Operator(_) | Authenticated::Tenant(_) => {}
    }
    let row = AuditRow {
        action: "scope.refuse",
        target: Some(operation),
        allowed: false,
        reason: Some(format!("the credential lacks the scope {scope}")),
        details: Value::Object(serde_json::Map::new()),
    };
    let recorded = match authenticated {
        Authenticated::Tenant(context) => state.store.audit(context, row).await,
        Authenticated::Operator(operator) => state.store.audit_above(operator, row).await,
    };
    if let Err(error) = recorded {
        tracing::warn!(%error, "a refused scope could not be recorded");
    }
    Err(insufficient(scope))
}

pub(super) fn insufficient(scope: Scope) -> Problem {
    Problem::new(Code::InsufficientScope, format!("This operation needs the scope `{scope}`."))
        .with("required_scope", scope.as_str())
}

/// The bearer token, if there is an `Authorization` at all.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let token = value
        .to_str()
        .ok()
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    match (token, all.next()) {
        (Some(token), None) if !token.is_empty() => Ok(Some(token)),
        _ => Err(access::unauthenticated()),
    }
}

fn token(parts: &Parts) -> Option<String> {
    let query = parts.uri.query()?;
    form_urlencoded::parse(query.as_bytes())
        .find_map(|(name, value)| (name == "token").then(|| value.into_owned()))
}

/// The tenant that the request acts for.
#[derive(Debug, Clone)]
pub(crate) struct Tenant(pub(crate) TenantContext);

/// The operator that the request acts for.
#[derive(Debug, Clone)]
pub(crate) struct Operator(pub(crate) OperatorContext);

macro_rules! from_extensions {
    ($($name:ident)*) => {$(
        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
                parts.extensions.get::<Self>().cloned().ok_or_else(access::unauthenticated)
            }
        }
    )*};
}
from_extensions! { Tenant Operator Credential }

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_operation_without_a_scope_keeps_the_process_from_starting() {
        let document = json!({"paths": {"/v1/x": {"get": {}}}});
        assert!(
            matches!(Table::of(&document), Err(ApiError::Undeclared { operation }) if operation == "GET /v1/x")
        );
        let document = json!({"paths": {"/v1/x": {"get": {"security": [{"bearer": ["no:such"]}]}}}});
        assert!(Table::of(&document).is_err());
    }

    #[test]
    fn the_table_says_what_the_document_says() {
        let document = json!({"paths": {
            "/healthz": {"get": {}},
            "/v1/me": {"get": {"security": [{"bearer": []}]}},
            "/v1/calls": {"post": {"security": [{"bearer": ["calls:write"]}]}},
            "/v1/calls/{id}/events": {"get": {"security": [{"bearer": ["calls:read"]}, {"stream_token": []}]}},
        }});
        let table = Table::of(&document).expect("declared");
        assert_eq!(table.get(&Method::HEAD, "/healthz"), Some(Access::Public));
        assert_eq!(table.get(&Method::GET, "/v1/me"), Some(Access::Anyone));
        assert_eq!(table.get(&Method::POST, "/v1/calls"), Some(Access::Scope(Scope::CallsWrite)));
        assert_eq!(table.get(&Method::GET, "/v1/calls"), None);
        assert_eq!(
            table.get(&Method::GET, "/v1/calls/{id}/events"),
            Some(Access::ScopeOrToken(Scope::CallsRead))
        );
    }

    #[test]
    fn only_one_bearer_is_a_bearer() {
        let headers = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().expect("a header"));
            }
            headers
        };
        assert_eq!(bearer(&headers(&[])), Ok(None));
        assert_eq!(bearer(&headers(&["bearer  x"])), Ok(Some("x")));
        for bad in [&["Basic x"][..], &["Bearer"], &["Bearer "], &["Bearer a", "Bearer b"]] {
            assert!(bearer(&headers(bad)).is_err(), "{bad:?}");
        }
    }
}
