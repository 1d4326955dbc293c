//! TLS by configuration: one certificate, read from files and read again when asked.
//!
//! # Design notes
//!
//! Connections under way keep the certificate that they began with. Files that cannot be used leave the present one in place: a
//! half-written file during a renewal must not end the service. TLS 1.2 is the oldest version (rustls has nothing older), and HTTP/2 is
//! offered before HTTP/1.1.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{Error, ServerConfig};

/// Why there is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has nothing of the kind in it.
    #[error("{} is not usable: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Certificate and key do not fit.
    #[error("the certificate in {} cannot be used with its key: {reason}", path.display())]
    Pair {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// The certificate that connections are served with.
#[derive(Debug)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    present: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads a certificate chain and its key, both PEM.
    ///
    /// # Errors
    /// When they cannot be read or do not fit.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let present = RwLock::new(Arc::new(read(certificate, key)?));
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), present })
    }

    /// Reads the files again, for connections from now on.
    ///
    /// # Errors
    /// When they cannot be used: what was read before stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        let read = Arc::new(read(&self.certificate, &self.key)?);
        *self.present.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&*self.present.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let file = |path: &Path, reason: String| TlsError::File { path: path.to_owned(), reason };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| file(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(file(certificate, "there is no certificate in it".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| file(key, error.to_string()))?;
    let pair = |error: Error| TlsError::Pair { path: certificate.to_owned(), reason: error.to_string() };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
