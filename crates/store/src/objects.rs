//! The bytes of artifacts: an object store behind one small door. What they are called and whose they are is in Postgres.
//!
//! # Design notes
//!
//! Objects are named by their content beneath their tenant: `<tenant>/<first two digits>/<SHA-256>`. So writing one twice
//! is writing it once, what is read can be checked, and a tenant's bytes are one prefix. Two tenants never share an
//! object: whether somebody else has stored a content must not show.
//!
//! The name is known only at the end, so content is gathered in a [`Draft`] first: a few MiB in memory, more of it in
//! a temporary file that has no name. Nothing half-written ever lies in the store.
//!
//! In a folder, those below it have its permissions: API and worker both write and remove there, and need not be one user.

use std::fmt;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use domain::{TenantId, limits};
use futures_util::{StreamExt, stream::BoxStream};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use sha2::{Digest, Sha256};

use crate::object_http::Connector;
use crate::{Result, StoreError};

/// Part of an upload in parts.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Parts of one upload that are under way at the same time.
const PARTS: usize = 2;

/// Where objects are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectsConfig {
    /// Beneath a folder of this machine, which is made when it is not there.
    Folder(PathBuf),
    /// In a bucket of S3 or of something that speaks its language.
    S3(S3Config),
}

/// A bucket. What is not said here is taken from the usual `AWS_…` variables of the environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct S3Config {
    /// Its name.
    pub bucket: String,
    /// What all keys begin with; may be empty.
    pub prefix: String,
    /// Its region.
    pub region: Option<String>,
    /// Address of the service, when it is not Amazon's. `http` is allowed, for one that is near.
    pub endpoint: Option<String>,
    /// Access key.
    pub access_key_id: Option<String>,
    /// Its secret.
    pub secret_access_key: Option<String>,
}

impl fmt::Debug for S3Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Config")
            .field("bucket", &self.bucket)
            .field("prefix", &self.prefix)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// Why there is no object store.
#[derive(Debug, thiserror::Error)]
pub enum ObjectStoreError {
    /// The folder cannot be made or used.
    #[error("the folder {} of artifacts cannot be used", folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The settings of the store are not good.
    #[error("the object store of artifacts cannot be used")]
    Settings(#[from] object_store::Error),
}

/// Where the bytes of artifacts are. Cheap to clone.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    folder: Option<Arc<Path>>,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects({})", self.store)
    }
}

impl Objects {
    /// Opens the store. A bucket is not asked for anything yet.
    ///
    /// # Errors
    /// When a folder cannot be made, or the settings of a bucket are not good.
    pub fn open(config: &ObjectsConfig) -> Result<Self, ObjectStoreError> {
        Ok(match config {
            ObjectsConfig::Folder(folder) => {
                Self { store: Arc::new(local(folder)?), folder: Some(folder.as_path().into()) }
            }
            ObjectsConfig::S3(config) => Self { store: bucket(config)?, folder: None },
        })
    }

    /// A store that is gone with the process, for tests and for processes that keep nothing.
    #[must_use]
    pub fn in_memory() -> Self {
        Self { store: Arc::new(InMemory::new()), folder: None }
    }

    /// Stores content under its name.
    pub(crate) async fn put(
        &self,
        operation: &'static str,
        tenant: TenantId,
        content: &Sealed,
    ) -> Result<()> {
        let key = key(tenant, &content.sha256);
        let failed = |source: object_store::Error| storage(operation, source);
        if let Some(folder) = &self.folder {
            let (folder, key) = (Arc::clone(folder), key.clone());
            let made = tokio::task::spawn_blocking(move || make_folders(&folder, &key)).await;
            let made = made.map_err(std::io::Error::other).flatten();
            made.map_err(|source| storage(operation, source))?;
        }
        match &content.body {
            Body::Memory(bytes) => {
                self.store.put(&key, PutPayload::from_bytes(bytes.clone())).await.map_err(failed)?;
            }
            Body::File(file) => {
                let upload = self.store.put_multipart(&key).await.map_err(failed)?;
                let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
                let mut from = 0;
                while from < content.size_bytes {
                    let piece = match read_piece(file, from).await {
                        Ok(piece) if !piece.is_empty() => piece,
                        other => {
                            let _ = upload.abort().await;
                            let error =
                                other.err().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into());
                            return Err(StoreError::Storage { operation, source: Box::new(error) });
                        }
                    };
                    from += piece.len() as u64;
                    upload.wait_for_capacity(PARTS).await.map_err(failed)?;
                    upload.put(piece);
                }
                upload.finish().await.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Bytes of an object, piece by piece as they are asked for.
    pub(crate) async fn get(
        &self,
        operation: &'static str,
        tenant: TenantId,
        sha256: &[u8],
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        if range.is_empty() {
            return Ok(futures_util::stream::empty().boxed());
        }
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let found = self.store.get_opts(&key(tenant, sha256), options).await;
        let stream = found.map_err(|source| storage(operation, source))?.into_stream();
        Ok(stream.map(move |piece| piece.map_err(|source| storage(operation, source))).boxed())
    }

    /// Removes an object. One that is not there is as good as removed.
    pub(crate) async fn remove(
        &self,
        operation: &'static str,
        tenant: TenantId,
        sha256: &[u8],
    ) -> Result<()> {
        match self.store.delete(&key(tenant, sha256)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(storage(operation, source)),
        }
    }
}

impl Objects {
    /// Removes everything of a tenant that lies in a folder, also what no name leads to.
    pub(crate) async fn forget(&self, operation: &'static str, tenant: TenantId) -> Result<()> {
        let Some(folder) = self.folder.as_ref().map(|folder| folder.join(tenant.to_string())) else {
            return Ok(());
        };
        match tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await {
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => {
                removed.map_err(std::io::Error::other).flatten().map_err(|source| storage(operation, source))
            }
        }
    }
}

fn local(folder: &Path) -> Result<LocalFileSystem, ObjectStoreError> {
    let failed = |source| ObjectStoreError::Folder { folder: folder.to_owned(), source };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    // What tenants keep is nobody else's on this machine to read.
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(failed)?;
    // Folders that are empty stay: one that went away while an object is put would come back with permissions of its own.
    Ok(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true))
}

/// Folders on the way to an object, there for good, with the permissions of the one that they are in: the API and the worker may be two users.
fn make_folders(folder: &Path, key: &object_store::path::Path) -> std::io::Result<()> {
    let permissions = std::fs::metadata(folder)?.permissions();
    let mut place = folder.to_owned();
    let steps: Vec<_> = key.parts().collect();
    for step in steps.iter().take(steps.len().saturating_sub(1)) {
        place.push(step.as_ref());
        match std::fs::create_dir(&place) {
            Ok(()) => {
                std::fs::set_permissions(&place, permissions.clone())?;
                // An object that is kept is found after a power cut, too.
                std::fs::File::open(place.parent().unwrap_or(folder))?.sync_all()?;
            }
            // Whoever made it may have ended before it gave it away, or be about to.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                if std::fs::metadata(&place)?.permissions() != permissions {
                    match std::fs::set_permissions(&place, permissions.clone()) {
                        Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied => {
                            return Err(error);
                        }
                        Ok(()) | Err(_) => {}
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn bucket(config: &S3Config) -> Result<Arc<dyn ObjectStore>, ObjectStoreError> {
    let mut builder =
        AmazonS3Builder::from_env().with_bucket_name(&config.bucket).with_http_connector(Connector);
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if let (Some(id), Some(secret)) = (&config.access_key_id, &config.secret_access_key) {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret);
    }
    let store = builder.build()?;
    Ok(match config.prefix.trim_matches('/') {
        "" => Arc::new(store),
        prefix => Arc::new(PrefixStore::new(store, prefix)),
    })
}

fn key(tenant: TenantId, sha256: &[u8]) -> object_store::path::Path {
    let hash = HEXLOWER.encode(sha256);
    object_store::path::Path::from(format!("{tenant}/{}/{hash}", hash.get(..2).unwrap_or_default()))
}

fn storage(operation: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Storage { operation, source: Box::new(source) }
}

/// Content that is being gathered.
#[derive(Debug, Default)]
pub struct Draft {
    hash: Sha256,
    size_bytes: u64,
    memory: BytesMut,
    file: Option<std::fs::File>,
}

/// Content that is whole.
#[derive(Debug)]
pub struct Sealed {
    pub(crate) sha256: [u8; 32],
    pub(crate) size_bytes: u64,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Memory(Bytes),
    File(Arc<std::fs::File>),
}

impl Draft {
    /// Adds bytes. The first few MiB are kept in memory, then everything is in a temporary file.
    ///
    /// # Errors
    /// When the temporary file cannot be written.
    pub async fn push(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.size_bytes += bytes.len() as u64;
        self.memory.extend_from_slice(bytes);
        if self.memory.len() > limits::ARTIFACT_MEMORY_BYTES {
            self.spill().await?;
        }
        Ok(())
    }

    /// Bytes so far.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// All of it is there.
    ///
    /// # Errors
    /// When the temporary file cannot be written.
    pub async fn seal(mut self) -> std::io::Result<Sealed> {
        if self.file.is_some() {
            self.spill().await?;
        }
        let body = match self.file {
            Some(file) => Body::File(Arc::new(file)),
            None => Body::Memory(self.memory.freeze()),
        };
        Ok(Sealed { sha256: self.hash.finalize().into(), size_bytes: self.size_bytes, body })
    }

    async fn spill(&mut self) -> std::io::Result<()> {
        let (file, bytes) = (self.file.take(), self.memory.split().freeze());
        let written = tokio::task::spawn_blocking(move || {
            let mut file = file.map_or_else(tempfile::tempfile, Ok)?;
            file.write_all(&bytes).map(|()| file)
        });
        self.file = Some(written.await.map_err(std::io::Error::other)??);
        Ok(())
    }
}

impl Sealed {
    /// Bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

async fn read_piece(file: &Arc<std::fs::File>, from: u64) -> std::io::Result<Bytes> {
    const PIECE_BYTES: u64 = 1024 * 1024;
    let file = Arc::clone(file);
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = Vec::new();
        let mut file = &*file;
        file.seek(SeekFrom::Start(from))?;
        file.take(PIECE_BYTES).read_to_end(&mut piece)?;
        Ok(Bytes::from(piece))
    });
    read.await.map_err(std::io::Error::other)?
}
