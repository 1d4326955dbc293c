//! TLS as a client meets it: a certificate of a CA made here, old versions refused, and a renewal without a restart.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
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
