//! HTTP to an object store: one pooled client of ours.
//!
//! # Design notes
//!
//! `object_store` can bring a client of its own (reqwest). Its TLS is a feature that holds for every reqwest client of a build,
//! and then each of them has to be given a provider of cryptography before it is made. This one keeps its provider to itself.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector as ObjectConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use rustls::{ClientConfig, RootCertStore};

/// Time for a connection to come up.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Time for an answer to begin, the sending of a part included.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Makes clients for `object_store`.
#[derive(Debug)]
pub(crate) struct Connector;

impl ObjectConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
            store: "S3",
            source,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.into()))?;
        // A machine without certificates can still speak to a store that is near and needs none.
        let config = match builder.clone().with_native_roots() {
            Ok(trusting) => trusting,
            Err(error) => {
                tracing::warn!(%error, "no certificate authorities: only an object store without TLS can be reached");
                builder.with_root_certificates(RootCertStore::empty())
            }
        };
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        tcp.enforce_http(false);
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(config.with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(HttpClient::new(Service { client: Client::builder(TokioExecutor::new()).build(https) }))
    }
}

#[derive(Debug)]
struct Service {
    client: Client<HttpsConnector<HttpConnector>, HttpRequestBody>,
}

#[async_trait::async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answered = tokio::time::timeout(ANSWER_LIMIT, self.client.request(request)).await;
        let response = answered.map_err(|elapsed| HttpError::new(HttpErrorKind::Timeout, elapsed))?.map_err(
            |error| {
                let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
                HttpError::new(kind, error)
            },
        )?;
        let (parts, body) = response.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}
