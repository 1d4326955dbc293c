//! Which migrations the database has, against those that this binary knows, and whether it may run on them.
//!
//! # Design notes
//!
//! Processes are replaced one by one, so for a while a binary runs on a schema that is newer than itself. Migrations only expand: what the
//! release before uses stays as it is (a test reads every migration for it). What nobody uses any more goes in a later release,
//! by a migration that raises `installation.needs_migration`; a binary that does not know the migration of that number refuses to start.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection, Row};

use crate::db::bounded;
use crate::reach::{Reach, connect_options};
use crate::{Result, Store};

const READ: &str = "read migrations";
/// How long a database that is only asked may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The migration that brought `installation.needs_migration`.
const UPGRADES: i64 = 32;

/// A migration, by its number and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationName {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: String,
}

/// The database's schema, as this binary sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// Migrations of this binary that the database does not have.
    pub missing: Vec<MigrationName>,
    /// Migrations of the database that this binary does not know.
    pub newer: Vec<MigrationName>,
    /// Whether the database still carries a binary of this age.
    carries: bool,
}

/// Whether this binary may run on a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaFit {
    /// It knows exactly what is there.
    Same,
    /// There is more than it knows, which does not concern it.
    Newer,
    /// Something that it uses is missing.
    Missing,
    /// Something that it uses is gone: the database needs a newer binary.
    LeftBehind,
}

impl Schema {
    /// From what both sides have; `needs` is the number that a binary has to know.
    fn compare(known: &[(i64, &str)], applied: BTreeMap<i64, String>, needs: i64) -> Self {
        let missing = known.iter().filter(|(version, _)| !applied.contains_key(version));
        let missing =
            missing.map(|(version, name)| MigrationName { version: *version, name: (*name).into() });
        let missing = missing.collect();
        let newest = known.iter().map(|(version, _)| *version).max().unwrap_or(0);
        let unknown =
            applied.into_iter().filter(|(version, _)| known.iter().all(|(known, _)| known != version));
        let newer = unknown.map(|(version, name)| MigrationName { version, name }).collect();
        Self { missing, newer, carries: needs <= newest }
    }

    /// Whether this binary may run on it.
    #[must_use]
    pub fn fit(&self) -> SchemaFit {
        match (self.carries, self.missing.is_empty(), self.newer.is_empty()) {
            (false, _, _) => SchemaFit::LeftBehind,
            (true, false, _) => SchemaFit::Missing,
            (true, true, false) => SchemaFit::Newer,
            (true, true, true) => SchemaFit::Same,
        }
    }
}

impl Store {
    /// The schema that the database has now.
    pub async fn schema(&self) -> Result<Schema> {
        let mut conn = self.db().system(READ).await?;
        let reach = conn.reach();
        let schema = conn.run(|connection| Box::pin(of(connection, reach))).await?;
        conn.end().await?;
        Ok(schema)
    }

    /// The same of a database that may have none yet, as its login role: whoever may migrate it may ask this.
    pub async fn schema_at(url: &str) -> Result<Schema> {
        let options = connect_options(url, PATIENCE)?;
        let mut connection = bounded(READ, PATIENCE, PgConnection::connect_with(&options)).await?;
        let schema = bounded(READ, PATIENCE, of(&mut connection, Reach::Direct)).await?;
        let _ = connection.close().await;
        Ok(schema)
    }
}

async fn of(connection: &mut PgConnection, reach: Reach) -> Result<Schema, sqlx::Error> {
    let ask = |sql| sqlx::query(sql).persistent(reach.keeps_statements());
    let there = ask("SELECT to_regclass('public._sqlx_migrations') IS NOT NULL");
    let there: bool = connection.fetch_one(there).await?.try_get(0)?;
    let mut applied = BTreeMap::new();
    if there {
        let rows = connection.fetch_all(ask("SELECT version, description FROM _sqlx_migrations")).await?;
        for row in rows {
            applied.insert(row.try_get(0)?, row.try_get(1)?);
        }
    }
    let needs = match applied.contains_key(&UPGRADES) {
        true => connection.fetch_one(ask("SELECT needs_migration FROM installation")).await?.try_get(0)?,
        false => 0,
    };
    Ok(Schema::compare(&crate::migrate::names(), applied, needs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [(i64, &str); 2] = [(1, "first"), (4, "second")];

    fn on(applied: &[i64], needs: i64) -> Schema {
        let applied = applied.iter().map(|version| (*version, format!("no {version}"))).collect();
        Schema::compare(&KNOWN, applied, needs)
    }

    #[test]
    fn a_binary_runs_on_its_own_schema_and_on_newer_ones_that_still_carry_it() {
        assert_eq!(on(&[1, 4], 0).fit(), SchemaFit::Same);
        assert_eq!(on(&[1, 4, 5], 4).fit(), SchemaFit::Newer);
        assert_eq!(on(&[1, 4, 5, 6], 5).fit(), SchemaFit::LeftBehind);
    }

    /// Counting them is not enough: what is new could hide what is missing.
    #[test]
    fn a_missing_migration_is_found_among_newer_ones() {
        let schema = on(&[1, 5, 6], 0);
        assert_eq!(schema.fit(), SchemaFit::Missing);
        assert_eq!(schema.missing, [MigrationName { version: 4, name: "second".to_owned() }]);
        assert_eq!(schema.newer.iter().map(|migration| migration.version).collect::<Vec<_>>(), [5, 6]);
    }
}
