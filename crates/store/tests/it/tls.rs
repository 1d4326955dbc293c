//! Connections to Postgres through a network, encrypted.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, Executor};
use store::testing::{Durability, TestDatabase, tenant};
use store::{DatabaseConfig, Store};

#[tokio::test]
async fn connections_to_postgres_are_encrypted_and_its_certificate_is_checked() -> Result<()> {
    let database = TestDatabase::private(Durability::Off).await?;
    let mut superuser = database.superuser().await?;
    let (data, name): (String, String) =
        sqlx::query_as("SELECT current_setting('data_directory'), current_database()")
            .fetch_one(&mut superuser)
            .await?;
    let data = PathBuf::from(data);
    // An address of this test's own, as the port is the same for all.
    let [_, _, a, b] = std::process::id().to_be_bytes();
    let address = format!("127.61.{a}.{b}");
    let issued = rcgen::generate_simple_self_signed(vec![address.clone()])?;
    let owner = data.metadata()?;
    for (file, content) in
        [("server.crt", issued.cert.pem()), ("server.key", issued.signing_key.serialize_pem())]
    {
        let path = data.join(file);
        std::fs::write(&path, content)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        chown(&path, Some(owner.uid()), Some(owner.gid()))?;
    }
    let hba = data.join("pg_hba.conf");
    std::fs::write(
        &hba,
        "hostssl all all 127.0.0.0/8 trust\nhost all all 127.0.0.0/8 reject\n".to_owned()
            + &std::fs::read_to_string(&hba)?,
    )?;
    superuser.execute("ALTER SYSTEM SET ssl = on").await?;
    superuser.execute(AssertSqlSafe(format!("ALTER SYSTEM SET listen_addresses = '{address}'"))).await?;
    database.crash().await?;
    database.start().await?;

    let ca = tempfile::NamedTempFile::new()?;
    std::fs::write(ca.path(), issued.cert.pem())?;
    let connect = async |parameters: String| {
        let url = format!("postgres://postgres@{address}/{name}?{parameters}");
        let config = DatabaseConfig { url, direct_url: None, ..database.config() };
        Store::connect(&config, &prometheus::Registry::new()).await
    };
    let store = connect(format!("sslmode=verify-full&sslrootcert={}", ca.path().display())).await?;
    tenant(&store, "acme").await?;
    let mut superuser = database.superuser().await?;
    let (encrypted, plain): (i64, i64) = sqlx::query_as(
        "SELECT count(*) FILTER (WHERE s.ssl), count(*) FILTER (WHERE NOT s.ssl)
         FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name = 'toolhost'",
    )
    .fetch_one(&mut superuser)
    .await?;
    ensure!(encrypted > 0 && plain == 0, "{encrypted} encrypted, {plain} plain");
    let stranger = rcgen::generate_simple_self_signed(vec![address.clone()])?;
    std::fs::write(ca.path(), stranger.cert.pem())?;
    let wrong = connect(format!("sslmode=verify-full&sslrootcert={}", ca.path().display())).await;
    ensure!(wrong.is_err(), "a certificate of somebody else was accepted");
    ensure!(connect("sslmode=disable".to_owned()).await.is_err(), "the server takes no plain connection");
    Ok(())
}
