//! TLS on every edge: as a client of the API meets it (old versions refused, a renewal without a restart), towards issuers and collectors
//! with a private CA, and between processes. Every certificate is of a CA made here.

use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use api::{Tls, Trust};
use bytes::Bytes;
use domain::Code;
use domain::exchange::{Opening, Operation};
use http_body_util::Full;
use hyper::Response;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use server::config::Secret;
use server::internal::Client;
use tests::{Host, wait};

/// Makes a CA (written to `ca`) and a certificate of its for this machine.
fn certify(ca: &Path, certificate: &Path, key: &Path) -> Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    // Issuer and subject must differ, or the leaf looks as if it had signed itself.
    params.distinguished_name.push(DnType::CommonName, "a CA made by a test");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let of_leaf = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    let leaf = leaf.signed_by(&of_leaf, &*issuer)?;
    std::fs::write(ca, issuer.pem())?;
    std::fs::write(certificate, leaf.pem())?;
    std::fs::write(key, of_leaf.serialize_pem())?;
    Ok(())
}

fn curl(arguments: &[&str]) -> Result<Output> {
    Ok(Command::new("curl").args(["-sS", "--noproxy", "*", "--max-time", "30"]).args(arguments).output()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_served_over_tls_and_takes_a_renewed_certificate() {
    Host::test_prepared(async |host| {
        let folder = host.folder().to_owned();
        let path = |name: &str| folder.join(name);
        let (ca, other, certificate, key) =
            (path("ca.pem"), path("other.pem"), path("cert.pem"), path("key.pem"));
        certify(&ca, &certificate, &key)?;
        certify(&other, &path("other-cert.pem"), &path("other-key.pem"))?;
        host.set("tls.certificate", &certificate.display().to_string());
        host.set("tls.key", &key.display().to_string());
        host.serve(&[])?;
        let url = format!("{}/healthz", host.base.replace("http://", "https://"));
        let trust = |ca: &Path| ca.display().to_string();

        let told = curl(&["--cacert", &trust(&ca), "-w", " %{http_version}", &url])?;
        ensure!(told.stdout.ends_with(b"} 2"), "{told:?}");
        let told = curl(&[
            "--cacert",
            &trust(&ca),
            "--http1.1",
            "--tls-max",
            "1.2",
            "-w",
            " %{http_version}",
            &url,
        ])?;
        ensure!(told.stdout.ends_with(b"} 1.1"), "{told:?}");
        ensure!(!curl(&["--cacert", &trust(&other), &url])?.status.success(), "a stranger's CA was enough");
        ensure!(
            !curl(&["--cacert", &trust(&ca), "--tls-max", "1.1", &url])?.status.success(),
            "TLS 1.1 was enough"
        );
        ensure!(!curl(&[&url.replace("https://", "http://")])?.status.success(), "plain HTTP was answered");

        // A file that is not whole changes nothing; a renewed pair is taken, without a restart.
        std::fs::write(&certificate, "-----BEGIN CERTIFICATE-----\nhalf")?;
        host.processes[0].signal(Signal::SIGHUP);
        host.processes[0].wait_for(|line| line.contains("stays as it was").then_some(()))?;
        ensure!(curl(&["--cacert", &trust(&ca), &url])?.status.success());
        std::fs::copy(path("other-key.pem"), &key)?;
        std::fs::copy(path("other-cert.pem"), &certificate)?;
        host.processes[0].signal(Signal::SIGHUP);
        wait::until("the renewed certificate is served", || async {
            Ok(curl(&["--cacert", &trust(&other), &url])?.status.success())
        })
        .await?;
        // Whoever connects and says nothing is cut, and keeps nobody else waiting.
        let silent = std::net::TcpStream::connect(host.base.trim_start_matches("http://"))?;
        silent.set_read_timeout(Some(Duration::from_secs(60)))?;
        ensure!(curl(&["--cacert", &trust(&other), &url])?.status.success());
        let mut nothing = [0];
        ensure!(
            std::io::Read::read(&mut &silent, &mut nothing).is_ok_and(|read| read == 0),
            "it was not cut"
        );
        Ok(())
    })
    .await;
}

/// Stands for an issuer and a collector: what was asked of it, by path.
async fn https(certificate: &Path, key: &Path) -> Result<(String, Arc<Mutex<Vec<String>>>)> {
    let tls = Arc::new(Tls::load(certificate, key)?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://{}", listener.local_addr()?);
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, told) = (Arc::clone(&tls), Arc::clone(&told));
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
                    told.lock().expect("not poisoned").push(request.uri().path().to_owned());
                    async {
                        Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from_static(b"{}"))))
                    }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Ok((url, asked))
}

#[tokio::test(flavor = "multi_thread")]
async fn issuers_and_collectors_are_asked_over_tls_by_whom_the_configuration_trusts() {
    Host::test_prepared(async |host| {
        let folder = host.folder().to_owned();
        let path = |name: &str| folder.join(name);
        certify(&path("ca.pem"), &path("cert.pem"), &path("key.pem"))?;
        certify(&path("other.pem"), &path("other-cert.pem"), &path("other-key.pem"))?;
        let (url, asked) = https(&path("cert.pem"), &path("key.pem")).await?;
        let asked = |path: &str| asked.lock().expect("not poisoned").iter().any(|asked| asked == path);
        let trusting = |host: &mut Host, ca: &str| {
            let ca = path(ca).display().to_string();
            let issuer = format!(
                "[{{issuer = \"https://i\", audience = [\"t\"], jwks_url = \"{url}/keys\", jwks_algorithms = [\"EdDSA\"], jwks_ca = \"{ca}\"}}]"
            );
            host.set("jwt.issuers", &issuer);
            host.set("telemetry.otlp_endpoint", &url);
            host.set("telemetry.otlp_ca", &ca);
        };
        // A stranger's CA: neither a set of keys nor spans go over such a connection.
        trusting(host, "other.pem");
        host.serve(&[])?;
        tests::Client::new(&host.base, "").get("/healthz").await?.expect(200)?;
        // In either order, and the second of them is said once.
        let (keys, spans) = (Cell::new(false), Cell::new(false));
        host.processes[0].wait_for(|line| {
            let refuses = |what: &str| line.contains(what) && line.contains("TLS");
            keys.set(keys.get() || refuses("were not read"));
            spans.set(spans.get() || refuses("takes no spans"));
            (keys.get() && spans.get()).then_some(())
        })?;
        ensure!(!asked("/keys") && !asked("/v1/traces"));

        trusting(host, "ca.pem");
        host.serve(&[])?;
        wait::until("the keys are asked for", || async { Ok(asked("/keys")) }).await?;
        tests::Client::new(&host.base, "").get("/healthz").await?.expect(200)?;
        wait::until("spans come", || async { Ok(asked("/v1/traces")) }).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_reach_each_other_over_tls_with_certificates_of_both() {
    const KEY: &str = "a key for the way between processes, long enough";
    Host::test_prepared(async |host| {
        let folder = host.folder().to_owned();
        let path = |name: &str| folder.join(name);
        certify(&path("ca.pem"), &path("cert.pem"), &path("key.pem"))?;
        certify(&path("other.pem"), &path("other-cert.pem"), &path("other-key.pem"))?;
        host.set("internal.listen", "127.0.0.1:0");
        host.set("internal.key", KEY);
        host.set("internal.tls_certificate", &path("cert.pem").display().to_string());
        host.set("internal.tls_key", &path("key.pem").display().to_string());
        host.set("internal.tls_ca", &path("ca.pem").display().to_string());
        host.serve(&[])?;
        let address =
            host.worker()?.wait_for(|line| tests::host::address(line, "the internal listener listens"))?;
        let address = address.trim_start_matches("http://");
        let tenant = host.tenant("acme")?;
        let session = tenant.client.session(json!({})).await?;
        let made = format!("/v1/sessions/{session}/files/mkdir");
        tenant.client.post(&made, &json!({"path": "over/tls"})).await?.expect(201)?;
        let listed = tenant.client.bash(&session, "ls over").await?;
        ensure!(listed["result"]["structured"]["stdout"] == "tls\n", "{listed:#}");

        // The key alone opens nothing: neither in plain, nor without a certificate, nor with a stranger's; and a stranger's listener gets no key.
        let opening = Opening {
            tenant_id: tenant.id.parse()?,
            session_id: session.parse()?,
            operation: Operation::Serving,
        };
        let mutual =
            |certificate: &str, key: &str, ca: &str| Trust::mutual(&path(certificate), &path(key), &path(ca));
        let of_us = mutual("cert.pem", "key.pem", "ca.pem")?;
        let open = async |trust| Client::new(Secret::new(KEY), trust).open(address, &opening).await.map(drop);
        ensure!(open(Some(of_us)).await.is_ok());
        for stranger in [
            None,
            Some(Trust::of(Some(&path("ca.pem")))?),
            Some(mutual("other-cert.pem", "other-key.pem", "ca.pem")?),
            Some(mutual("cert.pem", "key.pem", "other.pem")?),
        ] {
            let refused = open(stranger).await;
            ensure!(
                refused.as_ref().is_err_and(|error| error.code == Code::WorkerUnavailable),
                "{refused:?}"
            );
        }
        Ok(())
    })
    .await;
}
