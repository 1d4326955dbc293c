//! Migrations: part of the binary, applied under a lock, forward only.

use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Connection, Executor, PgConnection, Row, SqlSafeStr};

use crate::db::{bounded, read_found};
use crate::error::translate;
use crate::reach::connect_options;
use crate::{Result, Store, StoreError};

/// Number, name and text of every migration.
const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "main job", include_str!("../../../migrations/0001_main_job.sql")),
    (2, "files", include_str!("../../../migrations/0002_files.sql")),
    (3, "audit", include_str!("../../../migrations/0003_audit.sql")),
    (4, "access", include_str!("../../../migrations/0004_access.sql")),
    (5, "watch", include_str!("../../../migrations/0005_watch.sql")),
    (6, "capacity", include_str!("../../../migrations/0006_capacity.sql")),
    (8, "shells", include_str!("../../../migrations/0008_shells.sql")),
    (9, "code", include_str!("../../../migrations/0009_code.sql")),
    (10, "files", include_str!("../../../migrations/0010_files.sql")),
    (16, "hosts", include_str!("../../../migrations/0016_hosts.sql")),
    (18, "terminals", include_str!("../../../migrations/0018_terminals.sql")),
    (26, "restore", include_str!("../../../migrations/0026_restore.sql")),
    (34, "erasure", include_str!("../../../migrations/0034_erasure.sql")),
];

/// Texts of all migrations.
#[cfg(feature = "testing")]
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    MIGRATIONS.iter().map(|(_, _, text)| *text)
}

/// Longest time that one migration may take.
const PATIENCE: Duration = Duration::from_secs(600);

const OPERATION: &str = "migrate";

/// What [`Store::migrate`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationReport {
    /// Migrations that were applied now.
    pub applied: usize,
    /// Migrations that this binary has.
    pub total: usize,
}

impl Store {
    /// Applies the migrations that are missing, under a lock. A process of the version before goes on working meanwhile.
    /// The login role has to be allowed to create roles, or `toolhost_app` and `toolhost_system` have to exist and be granted to it.
    pub async fn migrate(url: &str) -> Result<MigrationReport> {
        let options = connect_options(url, PATIENCE)?;
        let mut connection =
            bounded(OPERATION, Duration::from_secs(10), PgConnection::connect_with(&options)).await?;
        let migrator = Migrator::with_migrations(
            MIGRATIONS
                .iter()
                .map(|(version, name, sql)| {
                    let (name, sql) = ((*name).into(), (*sql).into_sql_str());
                    Migration::new(*version, name, MigrationType::Simple, sql, false)
                })
                .collect(),
        );
        let before = applied(&mut connection).await?;
        match tokio::time::timeout(PATIENCE, migrator.run_direct(None, &mut connection, false)).await {
            Ok(done) => done.map_err(failed)?,
            Err(_) => return Err(StoreError::Unavailable { operation: OPERATION, source: None }),
        }
        // Readiness asks which migrations there are.
        let grant = connection.execute("GRANT SELECT ON _sqlx_migrations TO toolhost_system");
        bounded(OPERATION, PATIENCE, grant).await?;
        let after = applied(&mut connection).await?;
        let _ = connection.close().await;
        Ok(MigrationReport { applied: after.saturating_sub(before), total: MIGRATIONS.len() })
    }

    /// Migrations of this binary that the database does not have. A server with any is not ready.
    pub async fn migrations_pending(&self) -> Result<usize> {
        const OPERATION: &str = "read migrations";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .one(sqlx::query("SELECT to_regclass('public._sqlx_migrations') IS NOT NULL AS there"))
            .await?;
        let there: bool = read_found(OPERATION, Some(row), |row| row.try_get("there"))?;
        let mut applied = 0;
        if there {
            let row = conn.one(sqlx::query("SELECT count(*) AS applied FROM _sqlx_migrations")).await?;
            applied = read_found(OPERATION, Some(row), |row| row.try_get::<i64, _>("applied"))?;
        }
        conn.end().await?;
        Ok(MIGRATIONS.len().saturating_sub(usize::try_from(applied).unwrap_or(0)))
    }
}

async fn applied(connection: &mut PgConnection) -> Result<usize> {
    connection.ensure_migrations_table("_sqlx_migrations").await.map_err(failed)?;
    Ok(connection.list_applied_migrations("_sqlx_migrations").await.map_err(failed)?.len())
}

fn failed(error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            translate(OPERATION, error)
        }
        other => StoreError::Internal { operation: OPERATION, source: Box::new(other) },
    }
}

#[cfg(test)]
mod tests {
    use super::MIGRATIONS;

    /// A merge once left one out.
    #[test]
    fn every_file_of_the_folder_is_a_migration_and_they_are_in_order() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations"));
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .expect("there is a folder")
            .map(|entry| entry.expect("can be read").file_name().to_string_lossy().into_owned())
            .collect();
        files.sort();
        let listed: Vec<String> = MIGRATIONS
            .iter()
            .map(|(version, name, _)| format!("{version:04}_{}.sql", name.replace(' ', "_")))
            .collect();
        assert_eq!(listed, files);
    }
}
