//! Migrations: part of the binary, applied under a lock, forward only.

use std::time::{Duration, Instant};

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Connection, Executor, PgConnection, SqlSafeStr};
use tokio::time::sleep;

use crate::db::bounded;
use crate::error::{is_locked_out, translate};
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
    (28, "named shells", include_str!("../../../migrations/0028_named_shells.sql")),
    (29, "shells by name", include_str!("../../../migrations/0029_shells_by_name.sql")),
    (32, "upgrades", include_str!("../../../migrations/0032_upgrades.sql")),
    (34, "erasure", include_str!("../../../migrations/0034_erasure.sql")),
    (36, "rows of tenants", include_str!("../../../migrations/0036_rows_of_tenants.sql")),
    (37, "engines", include_str!("../../../migrations/0037_engines.sql")),
    (39, "withdrawn", include_str!("../../../migrations/0039_withdrawn.sql")),
    (41, "file modes", include_str!("../../../migrations/0041_file_modes.sql")),
    (42, "wheels", include_str!("../../../migrations/0042_wheels.sql")),
    (43, "languages", include_str!("../../../migrations/0043_languages.sql")),
    (44, "waiting", include_str!("../../../migrations/0044_waiting.sql")),
];

/// Number and name of every migration.
pub(crate) fn names() -> Vec<(i64, &'static str)> {
    MIGRATIONS.iter().map(|(version, name, _)| (*version, *name)).collect()
}

/// Texts of all migrations.
#[cfg(feature = "testing")]
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    MIGRATIONS.iter().map(|(_, _, text)| *text)
}

/// Longest time that the migrations may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time that one waits for a table, in milliseconds: for as long, whatever came after it waits behind it.
const LOCK_PATIENCE: &str = "2000";
/// Time that it then leaves to them, twice as long each time.
const LOCK_PAUSE: Duration = Duration::from_secs(1);
const LOCK_PAUSE_MAX: Duration = Duration::from_secs(30);

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
    /// Applies the migrations that are missing, under a lock. A process of the version before goes on working meanwhile: a migration that has
    /// to wait for a table (a dump reads it, say) lets what came after it pass, and is tried again.
    /// The login role has to be allowed to create roles, or `toolhost_app` and `toolhost_system` have to exist and be granted to it.
    pub async fn migrate(url: &str) -> Result<MigrationReport> {
        let by = Instant::now() + PATIENCE;
        let mut pause = LOCK_PAUSE;
        loop {
            match migrate(url).await {
                Err(error) if is_locked_out(&error) && Instant::now() < by => sleep(pause).await,
                done => return done,
            }
            pause = (2 * pause).min(LOCK_PAUSE_MAX);
        }
    }
}

async fn migrate(url: &str) -> Result<MigrationReport> {
    let options = connect_options(url, PATIENCE)?.options([("lock_timeout", LOCK_PATIENCE)]);
    let mut connection =
        bounded(OPERATION, Duration::from_secs(10), PgConnection::connect_with(&options)).await?;
    let mut migrator = Migrator::with_migrations(
        MIGRATIONS
            .iter()
            .map(|(version, name, sql)| {
                let (name, sql) = ((*name).into(), (*sql).into_sql_str());
                Migration::new(*version, name, MigrationType::Simple, sql, false)
            })
            .collect(),
    );
    // Those of a newer binary stay: this one may be started beside it, or in its place.
    migrator.set_ignore_missing(true);
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
    use data_encoding::HEXLOWER;
    use sha2::{Digest, Sha256};

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

    /// Postgres knows a migration by its text: one that was edited can be applied to no database that had it, and none after it.
    #[test]
    fn no_migration_that_was_merged_is_edited() {
        let sums: Vec<&str> = include_str!("migrate/sums.txt").lines().collect();
        let found: Vec<String> = MIGRATIONS
            .iter()
            .map(|(version, _, sql)| format!("{version:04} {}", HEXLOWER.encode(&Sha256::digest(sql))))
            .collect();
        assert_eq!(
            sums, found,
            "edit no line of crates/store/src/migrate/sums.txt; add those of new migrations"
        );
    }

    /// Migrations up to here were made before anybody had an installation to upgrade.
    const BEFORE_THE_RULE: i64 = 26;

    /// What takes away or tightens something that the release before may use.
    const TAKES: [&str; 17] = [
        "CREATE UNIQUE INDEX",
        "CREATE TRIGGER",
        "CREATE CONSTRAINT TRIGGER",
        "CREATE OR REPLACE TRIGGER",
        "REVOKE ",
        "DROP POLICY",
        "DROP TABLE",
        "DROP COLUMN",
        "DROP CONSTRAINT",
        "DROP FUNCTION",
        "DROP TYPE",
        "DROP VIEW",
        "DROP ROLE",
        "RENAME",
        "SET NOT NULL",
        "SET DATA TYPE",
        "ADD CONSTRAINT",
    ];

    /// Lines of a migration that are neither expansion, nor said to widen, nor part of a contraction that says whom it leaves behind.
    fn takes_away(sql: &str) -> Vec<String> {
        let contracts = sql.contains("-- contract:") && sql.contains("SET needs_migration =");
        let made = made_here(sql);
        let mut excused = false;
        let mut found = Vec::new();
        for line in sql.lines() {
            let (code, comment) = line.split_once("--").unwrap_or((line, ""));
            excused |= comment.trim_start().starts_with("widens:");
            let words = code.split_whitespace().collect::<Vec<_>>().join(" ").to_uppercase();
            if words.is_empty() {
                continue;
            }
            // With a blank behind, so that a column `revoked_at` is no REVOKE and one at the end of its line is.
            let spaced = format!("{words} ");
            let bare =
                words.contains("ADD COLUMN") && words.contains("NOT NULL") && !words.contains("DEFAULT");
            let column = words.contains("ALTER COLUMN") && words.contains(" TYPE ");
            // Nobody used yet what this very migration has made.
            let of_new = made.iter().any(|table| {
                words.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == table)
            });
            if (bare || column || TAKES.iter().any(|taken| spaced.contains(taken)))
                && !excused
                && !contracts
                && !of_new
            {
                found.push(line.trim().to_owned());
            }
            // The excuse holds for one statement.
            excused &= !words.ends_with(';');
        }
        found
    }

    /// Tables and functions that a migration makes, in upper case.
    fn made_here(sql: &str) -> Vec<String> {
        let words: Vec<String> = sql
            .lines()
            .map(|line| line.split_once("--").map_or(line, |(code, _)| code))
            .flat_map(|code| code.split(|c: char| !(c.is_alphanumeric() || c == '_')))
            .filter(|word| !word.is_empty())
            .map(str::to_uppercase)
            .collect();
        let made = words
            .windows(3)
            .filter(|three| three[0] == "CREATE" && matches!(three[1].as_str(), "TABLE" | "FUNCTION"));
        made.map(|three| three[2].clone()).collect()
    }

    /// Lines of migrations that were merged before the rule knew them, looked at by hand.
    const LOOKED_AT: &[(i64, &str)] = &[
        // Nobody was erased before, and the log was append-only already.
        (34, "CREATE TRIGGER audit_log_is_"),
        (34, "CREATE TRIGGER tenant_is_not_erased"),
        (34, "REVOKE CREATE ON SCHEMA public FROM toolhost_system;"),
    ];

    #[test]
    fn migrations_leave_the_release_before_what_it_uses() {
        for (version, name, sql) in MIGRATIONS.iter().filter(|(version, ..)| *version > BEFORE_THE_RULE) {
            let mut found = takes_away(sql);
            found
                .retain(|line| !LOOKED_AT.iter().any(|(of, known)| of == version && line.starts_with(known)));
            assert!(
                found.is_empty(),
                "{version:04}_{name} takes something away from processes of the release before, which run beside it: {found:#?}. \
                 Expand instead. When nothing is tightened, say so above the statement (`-- widens: why`); when a release ago \
                 nothing used it any more, say which migration that release came with (`-- contract: …` and \
                 `UPDATE installation SET needs_migration = …`)."
            );
        }
    }

    #[test]
    fn the_rule_knows_expansion_from_contraction() {
        let expands = "ALTER TABLE t ADD COLUMN a text, ADD COLUMN b int NOT NULL DEFAULT 0;\nCREATE INDEX i ON t (a); -- DROP TABLE\n\
                       -- widens: one word more\nALTER TABLE t\n    DROP CONSTRAINT c,\n    ADD CONSTRAINT c CHECK (true);";
        assert_eq!(takes_away(expands), [""; 0]);
        let makes = "CREATE TABLE t (a int);\nCREATE UNIQUE INDEX i ON t (a);\nREVOKE ALL ON t FROM PUBLIC;";
        assert_eq!(takes_away(makes), [""; 0]);
        for takes in [
            "CREATE UNIQUE INDEX i ON t (a);",
            "CREATE TRIGGER stays BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f();",
            "REVOKE INSERT ON t FROM toolhost_app;",
            "DROP POLICY p ON t;",
            "CREATE TABLE other (a int);\nCREATE UNIQUE INDEX i ON t (a);",
            "ALTER TABLE t DROP COLUMN a;",
            "alter table t rename to u;",
            "ALTER TABLE t ADD COLUMN a text NOT NULL;",
            "ALTER TABLE t ALTER COLUMN a TYPE int USING a::int;",
            "ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0);",
            "-- widens: only this\nCREATE INDEX i ON t (a);\nALTER TABLE t ALTER a SET  NOT NULL;",
        ] {
            assert_eq!(takes_away(takes).len(), 1, "{takes}");
        }
        let contracts = "-- contract: since 0040\nALTER TABLE t DROP COLUMN a;\nUPDATE installation SET needs_migration = 40;";
        assert_eq!(takes_away(contracts), [""; 0]);
    }
}
