//! One GET of a key set: over TLS with the system's trust, small, without redirects. The caller sets the time.

use std::sync::Arc;

use axum::http::Uri;
use axum::http::header::{ACCEPT, HOST};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Largest set, in bytes.
const SET_BYTES: usize = 256 * 1024;

/// Where a set lies.
pub(crate) struct Source {
    authority: String,
    host: String,
    port: u16,
    path: String,
    tls: Option<TlsConnector>,
}

/// Why it was not got.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("it cannot be reached: {0}")]
    Connect(#[from] std::io::Error),
    #[error("its answer cannot be read: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("it cannot be asked for: {0}")]
    Ask(#[from] axum::http::Error),
    #[error("its host has no name that a certificate could have")]
    Name,
    #[error("it answers {0}")]
    Status(u16),
    #[error("it cannot be read to its end, or has more than {SET_BYTES} bytes")]
    Body,
}

impl Source {
    /// Takes a URL apart: `https`, or `http` on this machine. The error is the end of a sentence.
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url.parse().map_err(|_| "that is no URL")?;
        let authority = uri.authority().ok_or("without a host")?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let here = matches!(host.as_str(), "localhost" | "127.0.0.1" | "::1");
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if here => false,
            _ => return Err("without https"),
        };
        Ok(Self {
            authority: authority.as_str().to_owned(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            tls: secure.then(connector).transpose()?,
            host,
        })
    }

    /// The body of its answer.
    pub(crate) async fn get(&self) -> Result<Vec<u8>, FetchError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match &self.tls {
            None => self.exchange(stream).await,
            Some(connector) => {
                let name = ServerName::try_from(self.host.clone()).map_err(|_| FetchError::Name)?;
                self.exchange(connector.connect(name, stream).await?).await
            }
        }
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Vec<u8>, FetchError> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // It ends with `sender`, also when the caller's time is over.
        tokio::spawn(connection);
        let request =
            Request::get(&self.path).header(HOST, &self.authority).header(ACCEPT, "application/json");
        let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        if !answer.status().is_success() {
            return Err(FetchError::Status(answer.status().as_u16()));
        }
        let body = Limited::new(answer.into_body(), SET_BYTES).collect().await;
        Ok(body.map_err(|_| FetchError::Body)?.to_bytes().to_vec())
    }
}

fn connector() -> Result<TlsConnector, &'static str> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "whose certificate cannot be checked: this system trusts nobody (install ca-certificates)",
        );
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("authority", &self.authority).finish_non_exhaustive()
    }
}
