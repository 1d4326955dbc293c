//! TLS by configuration: the certificate that is served, read from files and read again when asked, and whom this process trusts where it
//! connects to others.
//!
//! # Design notes
//!
//! Connections under way keep the certificate that they began with. Files that cannot be used leave the present one in place: a
//! half-written file during a renewal must not end the service. TLS 1.2 is the oldest version (rustls has nothing older), and HTTP/2 is
//! offered before HTTP/1.1.
//!
//! Between processes of one installation both sides show a certificate of the installation's own CA. Nothing but that CA is trusted there: whom
//! the system trusts has no business in the installation. The side that connects does so seldom and reads its files each time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream as ToServer;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, ConfigBuilder, ConfigSide, Error, RootCertStore, ServerConfig, WantsVerifier, WantsVersions,
};
use tokio_rustls::server::TlsStream as ToClient;
use tokio_rustls::{TlsAcceptor, TlsConnector};

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
    /// This system trusts nobody.
    #[error("this system trusts nobody (install ca-certificates)")]
    Nobody,
    /// Certificate and key do not fit, or the certificate is none that can be used.
    #[error("the certificate in {} cannot be used: {reason}", path.display())]
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
    /// Whose certificates clients have to show.
    clients: Option<PathBuf>,
    present: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads a certificate chain and its key, both PEM.
    ///
    /// # Errors
    /// When they cannot be read or do not fit.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::of(certificate.to_owned(), key.to_owned(), None)
    }

    /// The same for clients that show a certificate of this CA, and for HTTP/2 alone.
    ///
    /// # Errors
    /// When a file cannot be read, or certificate and key do not fit.
    pub fn mutual(certificate: &Path, key: &Path, ca: &Path) -> Result<Self, TlsError> {
        Self::of(certificate.to_owned(), key.to_owned(), Some(ca.to_owned()))
    }

    fn of(certificate: PathBuf, key: PathBuf, clients: Option<PathBuf>) -> Result<Self, TlsError> {
        let present = RwLock::new(Arc::new(read(&certificate, &key, clients.as_deref())?));
        Ok(Self { certificate, key, clients, present })
    }

    /// Reads the files again, for connections from now on.
    ///
    /// # Errors
    /// When they cannot be used: what was read before stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        let read = Arc::new(read(&self.certificate, &self.key, self.clients.as_deref())?);
        *self.present.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Greets whoever has connected. The caller sets the time.
    ///
    /// # Errors
    /// When no common TLS is found, or a client shows no certificate that is asked for.
    pub async fn accept(&self, stream: TcpStream) -> std::io::Result<ToClient<TcpStream>> {
        let present = Arc::clone(&*self.present.read().unwrap_or_else(PoisonError::into_inner));
        TlsAcceptor::from(present).accept(stream).await
    }
}

/// Whom this process trusts at the other end of a connection that it makes, and what it shows there.
#[derive(Debug, Clone)]
pub struct Trust {
    shown: Shown,
}

#[derive(Debug, Clone)]
enum Shown {
    /// Nothing.
    Nothing(Arc<ClientConfig>),
    /// A certificate, to a process of this installation.
    Certificate { certificate: PathBuf, key: PathBuf, ca: PathBuf },
}

impl Trust {
    /// Whom the system trusts, or those in a file alone (PEM).
    ///
    /// # Errors
    /// When that is nobody.
    pub fn of(ca: Option<&Path>) -> Result<Self, TlsError> {
        let roots = match ca {
            Some(ca) => roots_in(ca)?,
            None => roots_of_system()?,
        };
        let builder = builder(ClientConfig::builder_with_provider)?;
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        Ok(Self { shown: Shown::Nothing(Arc::new(config)) })
    }

    /// Processes of this installation, whose certificates are of this CA as this process's own is.
    ///
    /// # Errors
    /// When a file cannot be read, or certificate and key do not fit.
    pub fn mutual(certificate: &Path, key: &Path, ca: &Path) -> Result<Self, TlsError> {
        of_installation(certificate, key, ca)?;
        let (certificate, key, ca) = (certificate.to_owned(), key.to_owned(), ca.to_owned());
        Ok(Self { shown: Shown::Certificate { certificate, key, ca } })
    }

    /// Greets the server of this name or address. The caller sets the time.
    ///
    /// # Errors
    /// When it shows no certificate for that name by whom is trusted.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> std::io::Result<ToServer<TcpStream>> {
        let config = match &self.shown {
            Shown::Nothing(config) => Arc::clone(config),
            Shown::Certificate { certificate, key, ca } => {
                Arc::new(of_installation(certificate, key, ca).map_err(std::io::Error::other)?)
            }
        };
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        TlsConnector::from(config).connect(name, stream).await
    }
}

fn of_installation(certificate: &Path, key: &Path, ca: &Path) -> Result<ClientConfig, TlsError> {
    let (chain, private) = identity(certificate, key)?;
    let mut config = builder(ClientConfig::builder_with_provider)?
        .with_root_certificates(roots_in(ca)?)
        .with_client_auth_cert(chain, private)
        .map_err(unusable(certificate))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn roots_of_system() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TlsError::Nobody) } else { Ok(roots) }
}

fn roots_in(ca: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(unusable(ca))?;
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |reason: String| TlsError::File { path: file.to_owned(), reason };
    let chain = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed(error.to_string()))?;
    if chain.is_empty() { Err(failed("there is no certificate in it".to_owned())) } else { Ok(chain) }
}

fn identity(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| TlsError::File { path: key.to_owned(), reason: error.to_string() })?;
    Ok((certificates(certificate)?, private))
}

fn unusable(path: &Path) -> impl Fn(Error) -> TlsError {
    move |error| TlsError::Pair { path: path.to_owned(), reason: error.to_string() }
}

/// A configuration of either side, of TLS 1.2 and 1.3 by `ring`.
fn builder<S: ConfigSide>(
    with_provider: fn(Arc<CryptoProvider>) -> ConfigBuilder<S, WantsVersions>,
) -> Result<ConfigBuilder<S, WantsVerifier>, TlsError> {
    with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(unusable(Path::new("")))
}

fn read(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<ServerConfig, TlsError> {
    let (chain, private) = identity(certificate, key)?;
    let builder = builder(ServerConfig::builder_with_provider)?;
    let (builder, protocols) = match clients {
        None => (builder.with_no_client_auth(), vec![b"h2".to_vec(), b"http/1.1".to_vec()]),
        Some(ca) => {
            let provider = Arc::new(ring::default_provider());
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots_in(ca)?), provider).build();
            let verifier = verifier
                .map_err(|error| TlsError::File { path: ca.to_owned(), reason: error.to_string() })?;
            (builder.with_client_cert_verifier(verifier), vec![b"h2".to_vec()])
        }
    };
    let mut config = builder.with_single_cert(chain, private).map_err(unusable(certificate))?;
    config.alpn_protocols = protocols;
    Ok(config)
}
