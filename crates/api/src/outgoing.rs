//! Requests that a process itself makes: small, one connection each, without redirects, over TLS or to this machine. The caller
//! sets the time.

use std::path::Path;

use axum::http::Uri;
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::tls::{TlsError, Trust};

/// Whom plain HTTP may be spoken with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    /// This machine.
    Here,
    /// Any.
    Anywhere,
}

/// What a URL leads to.
pub struct Endpoint {
    authority: String,
    host: String,
    port: u16,
    path: String,
    tls: Option<Trust>,
}

/// Why a URL leads nowhere. The message is the end of a sentence.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// It is none that is spoken with.
    #[error("{0}")]
    Url(&'static str),
    /// Nobody at its other end could be trusted.
    #[error("whose certificate cannot be checked: {0}")]
    Trust(#[from] TlsError),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers there.
    #[error("it cannot be reached: {0}")]
    Connect(#[from] std::io::Error),
    /// Whoever answers is not who is trusted.
    #[error("it does not come to TLS: {0}")]
    Tls(#[source] std::io::Error),
    /// What is spoken there is not HTTP.
    #[error("its answer cannot be read: {0}")]
    Exchange(#[from] hyper::Error),
    /// The URL makes no request.
    #[error("it cannot be asked for: {0}")]
    Ask(#[from] axum::http::Error),
    /// It refuses.
    #[error("it answers {0}")]
    Status(u16),
    /// Its answer is cut short, or too long.
    #[error("it cannot be read to its end, or has more than {0} bytes")]
    Body(usize),
}

/// Without the path, whose query may have a secret.
impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Endpoint").field(&self.authority).finish()
    }
}

impl Endpoint {
    /// Takes a URL apart: `https`, or `http` where it may be. `ca` is a file with whom to trust in place of those whom the system trusts.
    ///
    /// # Errors
    /// When it is no such URL, or there is nobody to trust.
    pub fn parse(url: &str, plain: Plain, ca: Option<&Path>) -> Result<Self, EndpointError> {
        let uri: Uri = url.parse().map_err(|_| EndpointError::Url("that is no URL"))?;
        let authority = uri.authority().ok_or(EndpointError::Url("without a host"))?;
        // It would be sent as a host's name, and be no credential.
        if authority.as_str().contains('@') {
            return Err(EndpointError::Url("with a name or password in it"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let here = matches!(host.as_str(), "localhost" | "127.0.0.1" | "::1");
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if here || plain == Plain::Anywhere => false,
            _ => return Err(EndpointError::Url("without https")),
        };
        if !secure && ca.is_some() {
            return Err(EndpointError::Url("without https, and a file with whom to trust"));
        }
        Ok(Self {
            authority: authority.as_str().to_owned(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            tls: secure.then(|| Trust::of(ca)).transpose()?,
            host,
        })
    }

    /// The body of its answer, which has at most so many bytes.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn get(&self, most_bytes: usize) -> Result<Vec<u8>, AskError> {
        let request = Request::get(&self.path).header(ACCEPT, "application/json");
        let answer = self.ask(request.header(HOST, &self.authority).body(Full::default())?).await?;
        let body = Limited::new(answer.into_body(), most_bytes).collect().await;
        Ok(body.map_err(|_| AskError::Body(most_bytes))?.to_bytes().to_vec())
    }

    /// Sends it a body.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn post(&self, content_type: &str, body: Vec<u8>) -> Result<(), AskError> {
        let request = Request::post(&self.path).header(CONTENT_TYPE, content_type);
        self.ask(request.header(HOST, &self.authority).body(Full::from(body))?).await.map(drop)
    }

    async fn ask(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, AskError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let answer = match &self.tls {
            None => exchange(stream, request).await?,
            Some(trust) => {
                exchange(trust.connect(&self.host, stream).await.map_err(AskError::Tls)?, request).await?
            }
        };
        if answer.status().is_success() {
            Ok(answer)
        } else {
            Err(AskError::Status(answer.status().as_u16()))
        }
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with `sender` and the answer, also when the caller's time is over.
    tokio::spawn(connection);
    sender.send_request(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_url_are_refused_or_at_least_not_shown() {
        for url in
            ["https://user:secret@collector:4318/", "http://secret@127.0.0.1", "https://:secret@[::1]/"]
        {
            let refused = Endpoint::parse(url, Plain::Anywhere, None).expect_err("a credential");
            let said = format!("{refused} {refused:?}");
            assert!(said.contains("name or password") && !said.contains("secret"), "{said}");
        }
        let endpoint = Endpoint::parse("http://127.0.0.1:4318/traces?token=secret", Plain::Here, None);
        assert_eq!(format!("{:?}", endpoint.expect("a URL")), "Endpoint(\"127.0.0.1:4318\")");
    }
}
