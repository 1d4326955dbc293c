//! What handlers take from a request. Every refusal is a problem; nothing is read beyond its limit.

use std::borrow::Cow;
use std::str::FromStr;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use bytes::Bytes;
use domain::{Code, limits};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use store::{Idempotency, Page};
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::json::{self, Checks};
use crate::problem::Problem;
use crate::state::ApiState;

/// A request's type: decoded from JSON, then checked.
pub(crate) trait Input: DeserializeOwned + ToSchema {
    /// Whether an empty body means `{}`.
    const OPTIONAL: bool = false;
    /// Fields whose items are decoded one by one.
    const APART: &'static [&'static str] = &[];

    /// What the type cannot say.
    fn check(&self, checks: &mut Checks) {
        let _ = checks;
    }
}

/// A JSON body.
pub(crate) struct Json<T> {
    /// What it says.
    pub(crate) input: T,
}

/// A JSON body with what is wrong with it so far. Whoever knows more adds to it before it is refused, so that everything is told at once.
pub(crate) struct Draft<T> {
    /// What it says, without what does not fit.
    pub(crate) input: T,
    /// As it came, for idempotency.
    pub(crate) raw: Value,
    /// What is wrong with it.
    pub(crate) checks: Checks,
}

impl<T: Input> FromRequest<ApiState> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let Draft { input, checks, .. } = Draft::from_request(request, state).await?;
        checks.finish()?;
        Ok(Self { input })
    }
}

impl<T: Input> FromRequest<ApiState> for Draft<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let headers = request.headers().clone();
        let body = timeout(state.config.body_timeout, read(request))
            .await
            .map_err(|_| Problem::new(Code::RequestTimeout, "The body did not arrive in time."))??;
        let raw = if body.is_empty() && T::OPTIONAL {
            Value::Object(Map::new())
        } else {
            check_media_type(&headers)?;
            json::parse(&body)?
        };
        let (input, checks) = draft::<T>(&raw)?;
        Ok(Self { input, raw, checks })
    }
}

/// Decodes one value as far as that goes, and what is wrong with it. A problem when nothing can be made of it.
pub(crate) fn draft<T: Input>(value: &Value) -> Result<(T, Checks), Problem> {
    if !value.is_object() {
        return Err(Problem::new(Code::InvalidArguments, "A JSON object is needed.").field(
            "",
            crate::problem::FieldCode::WrongType,
            "must be an object",
        ));
    }
    let mut checks = Checks::default();
    let misfits = json::misfits(&T::name(), T::APART, value, &mut checks);
    let mut body =
        if misfits.is_empty() { Cow::Borrowed(value) } else { Cow::Owned(json::mended(value, misfits)) };
    // What the schema cannot say (that a text is an id) is met one by one.
    for _ in 0..MENDS {
        let problem = match json::decode::<T>(&body, "") {
            Ok(input) => {
                input.check(&mut checks);
                return Ok((input, checks));
            }
            Err(problem) => problem,
        };
        let rest = problem.errors.first().and_then(|error| json::without(&body, &error.pointer));
        checks.absorb(problem);
        match rest {
            Some(rest) => body = Cow::Owned(rest),
            None => break,
        }
    }
    match checks.finish() {
        Err(problem) => Err(problem),
        Ok(()) => Err(Problem::internal("decode a body", &"a fault that is none")),
    }
}

/// Values that are left out one by one, to look at the rest.
const MENDS: usize = 8;

async fn read(request: Request) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("A body may have at most {} bytes.", limits::REQUEST_BODY_BYTES);
        Problem::new(Code::BodyTooLarge, detail)
    };
    let announced =
        request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits::REQUEST_BODY_BYTES as u64) {
        return Err(too_large());
    }
    match Limited::new(request.into_body(), limits::REQUEST_BODY_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(_) => Err(Problem::new(Code::InvalidRequest, "The body could not be read to its end.")),
    }
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let detail = "Compressed bodies are not accepted.";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = given.split(';').map(|part| part.trim().to_ascii_lowercase());
    let essence = parts.next().unwrap_or_default();
    let json =
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    let utf8 = parts
        .all(|part| part.strip_prefix("charset=").is_none_or(|charset| charset.trim_matches('"') == "utf-8"));
    if json && utf8 {
        return Ok(());
    }
    Err(Problem::new(Code::UnsupportedMediaType, "Send JSON in UTF-8 with `Content-Type: application/json`."))
}

/// An `Idempotency-Key`.
pub(crate) struct IdempotencyKey(Option<String>);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

impl IdempotencyKey {
    /// The key with what it is used for. `also` are parameters of the path.
    pub(crate) fn with(
        &self,
        operation: &'static str,
        raw: &Value,
        also: &[(&str, String)],
    ) -> Option<Idempotency> {
        let mut request = raw.clone();
        if let Value::Object(fields) = &mut request {
            // How long this request waits is no part of what is created.
            fields.remove("wait_ms");
            fields.extend(also.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())));
        }
        self.0.as_ref().map(|key| Idempotency::of(operation, key, &request))
    }

    /// A key that the request has elsewhere than in its header.
    pub(crate) fn given(key: String) -> Self {
        Self(Some(key))
    }

    /// The key of one part of a request.
    pub(crate) fn part(&self, index: usize) -> Self {
        Self(self.0.as_ref().map(|key| format!("{key}#{index}")))
    }

    /// Refuses a key where the first answer could not be given again.
    pub(crate) fn refuse(&self, instead: &str) -> Result<(), Problem> {
        match self.0 {
            None => Ok(()),
            Some(_) => {
                let detail = format!("Idempotency-Key is not taken here: {instead}.");
                Err(Problem::new(Code::InvalidRequest, detail))
            }
        }
    }
}

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut keys = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(key) = keys.next() else { return Ok(Self(None)) };
        let key = key.to_str().ok().filter(|key| {
            (1..=limits::IDEMPOTENCY_KEY_BYTES).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_graphic())
        });
        match (key, keys.next()) {
            (Some(key), None) => Ok(Self(Some(key.to_owned()))),
            _ => {
                let most = limits::IDEMPOTENCY_KEY_BYTES;
                let detail = format!(
                    "Idempotency-Key must be one value of 1 to {most} visible ASCII characters without spaces."
                );
                Err(Problem::new(Code::InvalidRequest, detail))
            }
        }
    }
}

/// The id in the path. What is no id is not there.
pub(crate) struct Id<T>(pub(crate) T);

/// The two ids in the path.
pub(crate) struct Ids<A, B>(pub(crate) A, pub(crate) B);

impl<T: FromStr, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        nth(&params, 0).map(Self)
    }
}

impl<A: FromStr, B: FromStr, S: Send + Sync> FromRequestParts<S> for Ids<A, B> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        Ok(Self(nth(&params, 0)?, nth(&params, 1)?))
    }
}

fn nth<T: FromStr>(
    params: &Result<RawPathParams, RawPathParamsRejection>,
    index: usize,
) -> Result<T, Problem> {
    let value = params.as_ref().ok().and_then(|params| params.iter().nth(index)).map(|(_, value)| value);
    value.and_then(|value| value.parse().ok()).ok_or_else(Problem::not_found)
}

/// The query. Every parameter must be taken; what is left over is refused.
pub(crate) struct Params {
    pairs: Vec<(String, String)>,
}

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        if pairs.iter().any(|(name, value)| name.contains('\0') || value.contains('\0')) {
            return Err(Problem::new(Code::InvalidRequest, "The query must not contain NUL."));
        }
        Ok(Self { pairs })
    }
}

impl Params {
    /// A parameter that may be given once.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let mut all = self.take_all(name);
        match all.len() {
            0 | 1 => Ok(all.pop()),
            _ => Err(Problem::query(name, "must be given once")),
        }
    }

    /// A parameter of a type.
    pub(crate) fn parse<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>, Problem> {
        self.take(name)?.map(|text| text.parse().map_err(|_| Problem::query(name, expected))).transpose()
    }

    /// A parameter that may be given several times, or as a list with commas.
    pub(crate) fn parse_all<T>(
        &mut self,
        name: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, Problem> {
        let all = self.take_all(name);
        all.iter()
            .flat_map(|value| value.split(','))
            .map(|value| parse(value.trim()).ok_or_else(|| Problem::query(name, expected)))
            .collect()
    }

    fn take_all(&mut self, name: &str) -> Vec<String> {
        let taken = self.pairs.extract_if(.., |(candidate, _)| candidate == name);
        taken.map(|(_, value)| value).collect()
    }

    /// Parameters whose names start with a prefix, without it.
    pub(crate) fn take_prefixed(&mut self, prefix: &str) -> Vec<(String, String)> {
        let taken = self.pairs.extract_if(.., |(name, _)| name.starts_with(prefix));
        taken.map(|(name, value)| (name[prefix.len()..].to_owned(), value)).collect()
    }

    /// `limit` and `cursor` of a list. The cursor has to be one that was given for `list`, which names the filter too.
    pub(crate) fn page(
        &mut self,
        state: &ApiState,
        list: &str,
        owner: Option<domain::TenantId>,
    ) -> Result<Page, Problem> {
        let most = limits::PAGE_ITEMS;
        let expected = format!("must be a number from 1 to {most}");
        let limit = self.parse::<u32>("limit", &expected)?.unwrap_or(limits::PAGE_ITEMS_DEFAULT);
        if !(1..=most).contains(&limit) {
            return Err(Problem::query("limit", expected));
        }
        let after = match self.take("cursor")? {
            None => None,
            Some(cursor) => Some(state.signer.read_cursor(list, owner, &cursor).ok_or_else(|| {
                Problem::new(
                    Code::InvalidCursor,
                    "The cursor is not one that this list gave, with this filter.",
                )
            })?),
        };
        Ok(Page { limit, after })
    }

    /// Refuses what nobody took.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
                Err(Problem::query(&shown, "is not known here"))
            }
        }
    }
}
