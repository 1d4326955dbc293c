//! Who asks: from a presented credential to a tenant's or an operator's context, and whether that still holds.

use std::net::IpAddr;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use domain::{Code, OperatorContext, Principal, Scope, TenantContext, TenantId, TenantStatus};
use store::{AuthRefusal, Authenticated, Expiry, StoreError};

use super::rates;
use super::vigil::Carrier;
use crate::jwt::{self, Unverified, Verified};
use crate::problem::Problem;
use crate::signature::{StreamToken, Target};
use crate::state::ApiState;

/// When a client may come again whose issuer's keys are not there yet, in milliseconds.
const ISSUER_RETRY_MS: u64 = 2_000;

/// What a client showed. Its text is in no log.
#[derive(Clone)]
pub(crate) struct Credential {
    presented: Presented,
    address: Option<IpAddr>,
    /// What was found of an issuer's token.
    verified: Option<Arc<Verified>>,
    /// What it came on, when that can be cut.
    carrier: Option<Carrier>,
}

#[derive(Clone)]
enum Presented {
    /// An API key, or what is shown as one.
    Key(String),
    /// The token of a signed stream URL.
    Token(String),
    /// An issuer's token.
    Jwt(String),
}

impl Credential {
    /// What came as a bearer's: a key, or an issuer's token.
    pub(crate) fn bearer(state: &ApiState, text: &str, address: Option<IpAddr>) -> Self {
        let presented = if state.issuers.takes(text) { Presented::Jwt } else { Presented::Key };
        Self { presented: presented(text.to_owned()), address, verified: None, carrier: None }
    }

    pub(crate) fn token(token: String, address: Option<IpAddr>) -> Self {
        Self { presented: Presented::Token(token), address, verified: None, carrier: None }
    }

    /// Says what it came on.
    pub(crate) fn on(self, carrier: Option<Carrier>) -> Self {
        Self { carrier, ..self }
    }

    pub(super) fn carrier(&self) -> Option<&Carrier> {
        self.carrier.as_ref()
    }

    fn text(&self) -> &str {
        match &self.presented {
            Presented::Key(text) | Presented::Token(text) | Presented::Jwt(text) => text,
        }
    }

    /// Whether it came with a URL that somebody else may have made.
    pub(crate) fn is_signed_url(&self) -> bool {
        match self.presented {
            Presented::Token(_) => true,
            Presented::Key(_) | Presented::Jwt(_) => false,
        }
    }

    /// When it stops holding by itself, where it says so.
    pub(crate) fn until(&self) -> Option<DateTime<Utc>> {
        self.verified.as_ref().map(|verified| verified.until)
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(…)")
    }
}

/// What a credential is found to be without asking the database.
enum Shown<'a> {
    Key(&'a str),
    Token(Option<StreamToken>),
    Jwt(Result<Verified, Unverified>),
}

impl Shown<'_> {
    /// Nobody guesses a signature: who shows a good one is not what an address is throttled for.
    fn is_signed(&self) -> bool {
        matches!(self, Self::Token(Some(_)) | Self::Jwt(Ok(_)))
    }

    /// Nobody knows whether it is wrong, so that its address is not counted for it.
    fn is_unsure(&self) -> bool {
        matches!(self, Self::Jwt(Err(Unverified::UnknownKey)))
    }
}

/// The one answer to every credential that is not valid now.
pub(crate) fn unauthenticated() -> Problem {
    Problem::new(
        Code::Unauthenticated,
        "Send a valid API key or token as `Authorization: Bearer <key>`. Keys in the query are not accepted.",
    )
}

/// Who a credential speaks for. Wrong ones are counted by address.
pub(crate) async fn authenticate(
    state: &ApiState,
    credential: &mut Credential,
) -> Result<Authenticated, Problem> {
    let now = state.store.clock().now();
    let shown = match &credential.presented {
        Presented::Key(key) => Shown::Key(key),
        Presented::Token(token) => Shown::Token(state.signer.read_stream_token(token, now)),
        Presented::Jwt(text) => Shown::Jwt(state.issuers.verify(text, now).await),
    };
    let (is_signed, is_unsure) = (shown.is_signed(), shown.is_unsure());
    rates::admit_address(state, credential.address, credential.text(), is_signed)?;
    let outcome = match shown {
        Shown::Key(key) => state.store.authenticate(key, credential.address).await,
        Shown::Token(Some(token)) => {
            live_key(state, &token, credential.address, Expiry::Refuses).await.map(Authenticated::Tenant)
        }
        Shown::Token(None) => Err(AuthRefusal::Malformed),
        Shown::Jwt(Err(Unverified::NoKeys)) => {
            let detail = "The keys of the token's issuer could not be read yet.";
            return Err(Problem::new(Code::IssuerUnavailable, detail).retry_after_ms(ISSUER_RETRY_MS));
        }
        Shown::Jwt(verified) => match by_jwt(state, verified, credential.address).await {
            Ok((authenticated, verified)) => {
                credential.verified = Some(Arc::new(verified));
                Ok(authenticated)
            }
            Err(refusal) => Err(refusal),
        },
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
        Err(
            AuthRefusal::Malformed
            | AuthRefusal::Unknown
            | AuthRefusal::Revoked
            | AuthRefusal::Expired
            | AuthRefusal::Token(_),
        ) => {
            if !is_unsure {
                rates::failed(state, credential.address, credential.text(), is_signed);
            }
            Err(unauthenticated())
        }
    }
}

/// What an open stream's credential is good for now.
pub(crate) enum Standing {
    /// It may do this, and has the scopes that the stream needs.
    Good(Box<TenantContext>),
    /// The database does not answer. That is no reason to end a stream: nothing new can be read either.
    Unknown,
    /// It is not valid any more, or has lost a scope.
    Over,
}

/// Looks at an open stream's credential again, as if the stream were opened now with the scopes that it `needs`.
pub(crate) async fn standing(state: &ApiState, credential: &Credential, needs: &[Scope]) -> Standing {
    match again(state, credential, Expiry::Refuses).await {
        Ok(Authenticated::Tenant(context)) if needs.iter().all(|scope| context.has(*scope)) => {
            Standing::Good(Box::new(context))
        }
        Err(AuthRefusal::Store(_)) => Standing::Unknown,
        // No stream is an operator's.
        Ok(Authenticated::Tenant(_) | Authenticated::Operator(_)) | Err(_) => Standing::Over,
    }
}

/// Whether what a credential has begun, a tenant's or an operator's, with the scopes that it `needs`, may go on: not once the credential
/// was revoked, has lost a scope or has expired, as far as that is heeded, or its tenant was suspended. It may while the database does not
/// answer, as nothing new can be read either.
pub(crate) async fn may_go_on(
    state: &ApiState,
    credential: &Credential,
    needs: &[Scope],
    expiry: Expiry,
) -> bool {
    match again(state, credential, expiry).await {
        Ok(Authenticated::Tenant(context)) => needs.iter().all(|scope| context.has(*scope)),
        Ok(Authenticated::Operator(_)) => needs.iter().all(|scope| *scope == Scope::Operator),
        Err(AuthRefusal::Store(_)) => true,
        Err(
            AuthRefusal::Malformed
            | AuthRefusal::Unknown
            | AuthRefusal::Revoked
            | AuthRefusal::Expired
            | AuthRefusal::TenantSuspended
            | AuthRefusal::Token(_),
        ) => false,
    }
}

/// Who a credential that was good speaks for now.
async fn again(
    state: &ApiState,
    credential: &Credential,
    expiry: Expiry,
) -> Result<Authenticated, AuthRefusal> {
    match &credential.presented {
        Presented::Key(key) => state.store.authenticate_again(key, credential.address, expiry).await,
        Presented::Jwt(text) => {
            let now = state.store.clock().now();
            let is_let_pass = |verified: &&Verified| expiry == Expiry::IsLetPass && verified.until <= now;
            let verified = match credential.verified.as_deref().filter(is_let_pass) {
                // Its issuer may have taken the key back, whose tokens are all over: only of its subject there may be news.
                Some(verified) => Ok(verified.clone()),
                None => state.issuers.verify(text, now).await,
            };
            by_jwt(state, verified, credential.address).await.map(|(who, _)| who)
        }
        // What was opened outlives the URL that opened it, but not the key that made the URL.
        Presented::Token(token) => match state.signer.read_stream_token(token, DateTime::<Utc>::MIN_UTC) {
            Some(token) => {
                live_key(state, &token, credential.address, expiry).await.map(Authenticated::Tenant)
            }
            None => Err(AuthRefusal::Malformed),
        },
    }
}

/// What a credential is good for, when it is a signed token.
pub(crate) fn bound_to(state: &ApiState, credential: &Credential) -> Option<Target> {
    match &credential.presented {
        Presented::Key(_) | Presented::Jwt(_) => None,
        Presented::Token(token) => {
            state.signer.read_stream_token(token, DateTime::<Utc>::MIN_UTC).map(|token| token.target)
        }
    }
}

/// The context of an issuer's token, and what was found of it.
async fn by_jwt(
    state: &ApiState,
    verified: Result<Verified, Unverified>,
    address: Option<IpAddr>,
) -> Result<(Authenticated, Verified), AuthRefusal> {
    match verified {
        Ok(verified) => {
            let authenticated = match state.store.authenticate_subject(&verified.subject, address).await? {
                Authenticated::Tenant(context) => Authenticated::Tenant(context.until(Some(verified.until))),
                operator @ Authenticated::Operator(_) => operator,
            };
            Ok((authenticated, verified))
        }
        Err(Unverified::Refused(reason)) => Err(state.store.refuse_token(reason, address).await),
        Err(Unverified::UnknownKey) => Err(state.store.refuse_token(jwt::UNKNOWN_KEY, address).await),
        // Nothing is known, as when the database does not answer.
        Err(Unverified::NoKeys) => {
            Err(StoreError::Unavailable { operation: "read the keys of an issuer", source: None }.into())
        }
    }
}

/// The context of the key that made a token, as long as key and tenant are good. It may read what the token is for, if the key
/// still may, and nothing else.
async fn live_key(
    state: &ApiState,
    token: &StreamToken,
    address: Option<IpAddr>,
    expiry: Expiry,
) -> Result<TenantContext, AuthRefusal> {
    let scope = match token.target {
        Target::Call(_) => Scope::CallsRead,
        Target::Artifact(_) => Scope::ArtifactsRead,
    };
    if let Some(id) = token.key_id {
        let maker = state.store.authenticate_maker(token.tenant_id, id, address, expiry).await?;
        return Ok(maker.with_only(&[scope]));
    }
    // Made with an issuer's token: the URL never holds for longer than that, and nor does what it opened.
    if expiry == Expiry::Refuses && token.expires_at <= state.store.clock().now() {
        return Err(AuthRefusal::Expired);
    }
    if tenant_status(state, token.tenant_id).await? == TenantStatus::Suspended {
        return Err(AuthRefusal::TenantSuspended);
    }
    let reader = Principal { key_id: None, name: "a signed URL".to_owned(), address, issuer: None };
    Ok(TenantContext::verified(token.tenant_id, reader, vec![scope], Vec::new()))
}

async fn tenant_status(state: &ApiState, id: TenantId) -> Result<TenantStatus, StoreError> {
    let service = OperatorContext::verified(Principal::system());
    Ok(state.store.get_tenant(&service, id).await?.status)
}
