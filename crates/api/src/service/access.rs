//! Who asks: from a presented credential to a tenant's or an operator's context, and whether that still holds.

use std::net::IpAddr;

use domain::{Code, KeyId, OperatorContext, Principal, Scope, TenantContext, TenantId, TenantStatus};
use store::{ApiKey, AuthRefusal, Authenticated, Page, StoreError};
use uuid::Uuid;

use super::rates;
use crate::problem::Problem;
use crate::signature::StreamToken;
use crate::state::ApiState;

/// What a client showed. Its text is in no log.
#[derive(Clone)]
pub(crate) struct Credential {
    presented: Presented,
    address: Option<IpAddr>,
}

#[derive(Clone)]
enum Presented {
    Key(String),
    Token(String),
}

impl Credential {
    pub(crate) fn key(key: &str, address: Option<IpAddr>) -> Self {
        Self { presented: Presented::Key(key.to_owned()), address }
    }

    pub(crate) fn token(token: String, address: Option<IpAddr>) -> Self {
        Self { presented: Presented::Token(token), address }
    }

    fn text(&self) -> &str {
        match &self.presented {
            Presented::Key(text) | Presented::Token(text) => text,
        }
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(…)")
    }
}

/// The one answer to every credential that is not valid now.
pub(crate) fn unauthenticated() -> Problem {
    Problem::new(
        Code::Unauthenticated,
        "Send a valid API key as `Authorization: Bearer <key>`. Keys in the query are not accepted.",
    )
}

/// Who a credential speaks for. Wrong ones are counted by address.
pub(crate) async fn authenticate(
    state: &ApiState,
    credential: &Credential,
) -> Result<Authenticated, Problem> {
    rates::admit_address(state, credential.address, credential.text())?;
    let outcome = match &credential.presented {
        Presented::Key(key) => state.store.authenticate(key, credential.address).await,
        Presented::Token(token) => by_token(state, token, credential.address).await,
    };
    match outcome {
        Ok(authenticated) => {
            rates::succeeded(state, credential.text());
            Ok(authenticated)
        }
        Err(AuthRefusal::Store(error)) => Err(error.into()),
        Err(AuthRefusal::TenantSuspended) => {
            Err(Problem::new(Code::TenantSuspended, "The tenant is suspended. Ask the operator."))
        }
        Err(AuthRefusal::Malformed | AuthRefusal::Unknown | AuthRefusal::Revoked | AuthRefusal::Expired) => {
            rates::failed(state, credential.address, credential.text());
            Err(unauthenticated())
        }
    }
}

/// Whether an open stream may go on. A database that does not answer is no reason to end it: nothing new can be read either.
pub(crate) async fn still_valid(state: &ApiState, credential: &Credential) -> bool {
    let refusal = match &credential.presented {
        Presented::Key(key) => state.store.authenticate(key, credential.address).await.err(),
        // A stream outlives the URL that opened it, but not the key that made the URL.
        Presented::Token(token) => {
            match state.signer.read_stream_token(token, chrono::DateTime::<chrono::Utc>::MIN_UTC) {
                Some(token) => live_key(state, &token, credential.address).await.err(),
                None => Some(AuthRefusal::Malformed),
            }
        }
    };
    matches!(refusal, None | Some(AuthRefusal::Store(_)))
}

/// The call that a credential is bound to, when it is a signed token.
pub(crate) fn bound_call(state: &ApiState, credential: &Credential) -> Option<domain::CallId> {
    match &credential.presented {
        Presented::Key(_) => None,
        Presented::Token(token) => state
            .signer
            .read_stream_token(token, chrono::DateTime::<chrono::Utc>::MIN_UTC)
            .map(|token| token.call_id),
    }
}

async fn by_token(
    state: &ApiState,
    token: &str,
    address: Option<IpAddr>,
) -> Result<Authenticated, AuthRefusal> {
    let now = state.store.clock().now();
    let token = state.signer.read_stream_token(token, now).ok_or(AuthRefusal::Malformed)?;
    live_key(state, &token, address).await.map(Authenticated::Tenant)
}

/// The context of the key that made a token, as long as key and tenant are good. It may read calls and nothing else.
async fn live_key(
    state: &ApiState,
    token: &StreamToken,
    address: Option<IpAddr>,
) -> Result<TenantContext, AuthRefusal> {
    let principal = |name: String| Principal { key_id: Some(token.key_id), name, address };
    let reader =
        |name| TenantContext::verified(token.tenant_id, principal(name), vec![Scope::CallsRead], Vec::new());
    let key = own_key(state, &reader(String::new()), token.key_id).await?.ok_or(AuthRefusal::Unknown)?;
    if key.revoked_at.is_some() {
        return Err(AuthRefusal::Revoked);
    }
    if key.expires_at.is_some_and(|expires_at| expires_at <= state.store.clock().now()) {
        return Err(AuthRefusal::Expired);
    }
    if tenant_status(state, token.tenant_id).await? == TenantStatus::Suspended {
        return Err(AuthRefusal::TenantSuspended);
    }
    Ok(reader(key.name))
}

/// One key of the tenant: the first of the list that begins right behind where it would be.
async fn own_key(state: &ApiState, context: &TenantContext, id: KeyId) -> Result<Option<ApiKey>, StoreError> {
    let after = Uuid::from_u128(id.uuid().as_u128().saturating_add(1));
    let page = Page { limit: 1, after: Some(after) };
    let listed = state.store.list_own_keys(context, page).await?;
    Ok(listed.items.into_iter().find(|key| key.id == id))
}

async fn tenant_status(state: &ApiState, id: TenantId) -> Result<TenantStatus, StoreError> {
    let service = OperatorContext::verified(Principal::system());
    Ok(state.store.get_tenant(&service, id).await?.status)
}
