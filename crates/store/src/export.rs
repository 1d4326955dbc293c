//! Everything of a tenant as JSON lines, in bounded memory.
//!
//! # Design notes
//!
//! * *The tenant's own eyes.* An export is read by the role that row-level security binds to one tenant, inside one transaction that has set
//!   it: another tenant's row cannot come into it, whatever a query says. The tables are found in the catalogue, and of each the columns
//!   that this role may read: so a table that is added later is exported too, and what no tenant may read (hashes of keys) never is.
//! * *One moment.* The transaction is a snapshot: rows refer to rows that are there. It lasts as long as the reader takes, on a
//!   connection of its own; a reader that stands still is let go.
//! * *Pages.* Each table is read by its key, some rows at a time, and a checkpoint follows each page. An export that was cut off goes on
//!   behind its last checkpoint, on a new snapshot. Events and output, which have no index of tenants, follow their calls.
//! * *Bytes* are base64. The content of artifacts and wheels comes last, from the object store, in pieces.
//! * Values of environment variables of sessions and contexts are left out, as they may be secrets of others; their names stay.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
use domain::{OperatorContext, TenantContext, TenantId};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor, Row};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::db::{Statement, bounded, read, unsigned};
use crate::error::translate;
use crate::{AuditRow, Result, Store, StoreError};

const EXPORT: &str = "export a tenant";
/// Rows of a page, of tables whose rows may be large, and pages that wait for the reader.
const ROWS: i64 = 500;
const LARGE_ROWS: i64 = 16;
const PAGES: usize = 2;
/// How long the snapshot waits for a reader between two pages.
const PATIENCE: &str = "120s";
/// Version of the form of exports.
const VERSION: u32 = 1;
/// Bytes of an artifact in one line.
const PIECE_BYTES: usize = 256 * 1024;

/// Tables whose rows may have megabytes each.
const LARGE: [&str; 3] = ["calls", "file_versions", "output_chunks"];
/// Tables that follow the calls of a page, by the column that names the call.
const OF_CALLS: [(&str, &str); 2] = [("call_events", "call_id"), ("output_chunks", "owner")];
/// Keys by which tables are read faster than by their own.
const KEYS: [(&str, [&str; 2]); 1] = [("audit_log", ["at", "id"])];
/// Columns of which only the names of the fields are told.
const NAMES_ONLY: &str = "env";
/// Columns that are told to nobody: hashes of what may be short enough to be guessed.
const LEFT_OUT: [(&str, &str); 1] = [("idempotency_keys", "request")];

/// Behind what an export goes on. As text it is opaque.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportPlace {
    /// Whose export it is of.
    tenant: TenantId,
    /// The table, or `artifact_content`.
    table: String,
    /// Key of the last row of a page, as texts; empty before the first.
    key: Vec<String>,
}

impl ExportPlace {
    /// Reads what a checkpoint says. `None` when it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_slice(&BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok()
    }

    fn text(&self) -> String {
        BASE64URL_NOPAD.encode(&serde_json::to_vec(self).unwrap_or_default())
    }
}

/// An export that is under way: pages of lines as they are asked for. Dropped, it ends.
#[derive(Debug)]
pub struct Export {
    pages: mpsc::Receiver<Result<Bytes>>,
}

impl Export {
    /// The next lines; `None` behind the last. After an error there is nothing more, and the export is not whole.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        self.pages.recv().await
    }
}

/// The place of an export's content among its tables: behind all of them.
const CONTENT: &str = "artifact_content";

impl Store {
    /// Begins an export, or goes on with one behind a checkpoint. It is recorded in the tenant's trail. [`StoreError::NotFound`] when
    /// there is no such tenant; [`StoreError::Conflict`] when the checkpoint is none of an export of this tenant.
    pub async fn export_tenant(
        &self,
        operator: &OperatorContext,
        tenant: TenantId,
        after: Option<ExportPlace>,
    ) -> Result<Export> {
        self.get_tenant(operator, tenant).await?;
        let system = TenantContext::verified(tenant, operator.principal().clone(), Vec::new(), Vec::new());
        let mut reader = Reader {
            conn: self.db().snapshot(EXPORT, &system, PATIENCE).await?,
            timeout: self.db().timeout(),
            tenant,
        };
        let tables = reader.tables().await?;
        let from = match &after {
            None => 0,
            Some(place) => reader.find(&tables, place).await?,
        };
        let mut conn = self.db().system(EXPORT).await?;
        let details = json!({"resumed": after.is_some()});
        let trail = AuditRow::done("tenant.export", tenant).details(details);
        conn.audit(Some(tenant), operator.principal(), &trail).await?;
        conn.end().await?;
        let (pages, receiver) = mpsc::channel(PAGES);
        let work = Work { store: self.clone(), reader, pages, rows: BTreeMap::new() };
        tokio::spawn(work.run(tables, from, after.map(|place| place.key).unwrap_or_default()));
        Ok(Export { pages: receiver })
    }
}

/// One table as the tenant's role sees it.
#[derive(Debug)]
struct Table {
    name: String,
    /// Columns of its key with their types.
    key: Vec<(String, String)>,
    /// The column that says whose a row is.
    owner: &'static str,
    /// What a row is made of.
    columns: String,
}

/// Nobody reads any more, or it cannot be read on.
enum Stopped {
    Gone,
    Failed(StoreError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

struct Work {
    store: Store,
    reader: Reader,
    pages: mpsc::Sender<Result<Bytes>>,
    /// Rows so far, by table.
    rows: BTreeMap<String, u64>,
}

impl Work {
    async fn run(mut self, tables: Vec<Table>, from: usize, key: Vec<String>) {
        let pages = self.pages.clone();
        if let Err(Stopped::Failed(error)) = self.all(tables, from, key).await {
            tracing::warn!(%error, "an export could not be read to its end");
            let _ = pages.send(Err(error)).await;
        }
    }

    async fn all(&mut self, tables: Vec<Table>, from: usize, key: Vec<String>) -> Result<(), Stopped> {
        let begun = json!({"export": {"version": VERSION, "tenant_id": self.reader.tenant, "read_at": self.store.clock().now()}});
        self.send(format!("{begun}\n")).await?;
        let mut key = key;
        for table in tables.iter().skip(from) {
            if !OF_CALLS.iter().any(|(name, _)| *name == table.name) {
                self.table(table, &tables, std::mem::take(&mut key)).await?;
            }
        }
        self.content(key).await?;
        let end = json!({"end": {"tenant_id": self.reader.tenant, "rows": self.rows}});
        self.send(format!("{end}\n")).await
    }

    /// One table from a key on, page by page.
    async fn table(&mut self, table: &Table, tables: &[Table], mut key: Vec<String>) -> Result<(), Stopped> {
        loop {
            let rows = self.reader.page(table, &key).await?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            key.clone_from(last);
            let ids: Vec<Uuid> = rows.iter().filter_map(|(key, _)| key.first()?.parse().ok()).collect();
            let mut page = self.lines(&table.name, rows);
            if table.name == "calls" {
                self.send(std::mem::take(&mut page)).await?;
                self.of_calls(tables, &ids).await?;
            }
            let place =
                ExportPlace { tenant: self.reader.tenant, table: table.name.clone(), key: key.clone() };
            let _ = writeln!(page, "{}", json!({"checkpoint": place.text()}));
            self.send(page).await?;
        }
    }

    /// Events and output of some calls.
    async fn of_calls(&mut self, tables: &[Table], calls: &[Uuid]) -> Result<(), Stopped> {
        for (name, column) in OF_CALLS {
            let Some(table) = tables.iter().find(|table| table.name == name) else { continue };
            // A shell that was one from its beginning has a log of its own.
            let owners = match column {
                "owner" => [calls.to_vec(), self.reader.shells(calls).await?].concat(),
                _ => calls.to_vec(),
            };
            let mut key = Vec::new();
            loop {
                let rows = self.reader.page_of(table, column, &owners, &key).await?;
                let Some((last, _)) = rows.last() else { break };
                key.clone_from(last);
                let page = self.lines(name, rows);
                self.send(page).await?;
            }
        }
        Ok(())
    }

    /// The bytes of artifacts and wheels, each content once.
    async fn content(&mut self, key: Vec<String>) -> Result<(), Stopped> {
        let mut after =
            key.first().and_then(|hash| HEXLOWER.decode(hash.as_bytes()).ok()).unwrap_or_default();
        while let Some((sha256, size_bytes)) = self.reader.next_object(&after).await? {
            let hash = HEXLOWER.encode(&sha256);
            let objects = self.store.objects();
            let mut pieces = objects.get(EXPORT, self.reader.tenant, &sha256, 0..size_bytes).await?;
            let mut offset = 0;
            while let Some(bytes) = pieces.try_next().await? {
                for piece in bytes.chunks(PIECE_BYTES) {
                    let row = json!({"sha256": hash, "offset": offset, "base64": BASE64.encode(piece)});
                    offset += piece.len() as u64;
                    let line = self.lines(CONTENT, vec![(Vec::new(), row.to_string())]);
                    self.send(line).await?;
                    // Content has no statements: a large one must not look like a reader that stands still.
                    self.reader.all(sqlx::query("SELECT")).await?;
                }
            }
            let place =
                ExportPlace { tenant: self.reader.tenant, table: CONTENT.to_owned(), key: vec![hash] };
            self.send(format!("{}\n", json!({"checkpoint": place.text()}))).await?;
            after = sha256;
        }
        Ok(())
    }

    fn lines(&mut self, table: &str, rows: Vec<(Vec<String>, String)>) -> String {
        *self.rows.entry(table.to_owned()).or_default() += rows.len() as u64;
        let mut lines = String::new();
        for (_, row) in rows {
            // Names of tables come from the catalogue and need no escape; rows are JSON already.
            let _ = writeln!(lines, "{{\"table\":\"{table}\",\"row\":{row}}}");
        }
        lines
    }

    async fn send(&self, page: String) -> Result<(), Stopped> {
        if page.is_empty() {
            return Ok(());
        }
        self.pages.send(Ok(page.into())).await.map_err(|_| Stopped::Gone)
    }
}

/// Rows of a page: the key of each as texts, and the row as JSON.
type Rows = Vec<(Vec<String>, String)>;

/// The snapshot, as the tenant.
struct Reader {
    conn: PgConnection,
    timeout: Duration,
    tenant: TenantId,
}

impl Reader {
    async fn all(&mut self, statement: Statement<'_>) -> Result<Vec<PgRow>> {
        bounded(EXPORT, self.timeout, self.conn.fetch_all(statement)).await
    }

    /// The table that a checkpoint is of. Whatever is wrong with it is said before the first line.
    async fn find(&mut self, tables: &[Table], place: &ExportPlace) -> Result<usize> {
        let none = StoreError::Conflict {
            operation: EXPORT,
            message: "the checkpoint is not one of an export of this tenant and version",
        };
        if place.tenant != self.tenant {
            return Err(none);
        }
        if place.table == CONTENT {
            let is_hash = |text: &String| HEXLOWER.decode(text.as_bytes()).is_ok_and(|hash| hash.len() == 32);
            return if place.key.len() == 1 && place.key.iter().all(is_hash) {
                Ok(tables.len())
            } else {
                Err(none)
            };
        }
        let Some(at) = tables.iter().position(|table| table.name == place.table) else { return Err(none) };
        let table = &tables[at];
        if place.key.len() != table.key.len() || place.key.iter().any(|text| text.contains('\0')) {
            return Err(none);
        }
        // Only the database knows which texts are values of its types. Their names come from its catalogue.
        let values =
            table.key.iter().enumerate().map(|(n, (_, kind))| format!("($1::text[])[{}]::{kind}", n + 1));
        let read_all = AssertSqlSafe(format!("SELECT {}", values.collect::<Vec<_>>().join(", ")));
        let looked = sqlx::query(read_all).bind(&place.key).fetch_one(&mut self.conn);
        match tokio::time::timeout(self.timeout, looked).await {
            Ok(Ok(_)) => Ok(at),
            Ok(Err(sqlx::Error::Database(error)))
                if error.code().is_some_and(|code| code.starts_with("22")) =>
            {
                Err(none)
            }
            Ok(Err(error)) => Err(translate(EXPORT, error)),
            Err(elapsed) => {
                Err(StoreError::Unavailable { operation: EXPORT, source: Some(Box::new(elapsed)) })
            }
        }
    }

    /// The next rows of the tenant behind a key.
    async fn page(&mut self, table: &Table, key: &[String]) -> Result<Rows> {
        let text = format!(
            "SELECT {keys}, ({columns})::text AS row FROM {name} t WHERE t.{owner} = $1 AND {behind} ORDER BY {order} LIMIT $3",
            keys = table.key_texts(),
            columns = table.columns,
            name = table.name,
            owner = table.owner,
            behind = table.behind(key),
            order = table.order(),
        );
        let rows = table.rows();
        let statement = sqlx::query(AssertSqlSafe(text)).bind(self.tenant.uuid()).bind(key).bind(rows);
        let rows = self.all(statement).await?;
        read(EXPORT, &rows, key_and_row)
    }

    /// The same of some calls, found by their ids; the bounds leave the partitions of other days alone.
    async fn page_of(&mut self, table: &Table, column: &str, ids: &[Uuid], key: &[String]) -> Result<Rows> {
        let text = format!(
            "SELECT {keys}, ({columns})::text AS row FROM {name} t WHERE t.{owner} = $1 AND t.{column} = ANY ($4)
               AND t.{column} >= $5 AND t.{column} <= $6 AND {behind} ORDER BY {order} LIMIT $3",
            keys = table.key_texts(),
            columns = table.columns,
            name = table.name,
            owner = table.owner,
            behind = table.behind(key),
            order = table.order(),
        );
        let rows = table.rows();
        let statement = sqlx::query(AssertSqlSafe(text))
            .bind(self.tenant.uuid())
            .bind(key)
            .bind(rows)
            .bind(ids)
            .bind(ids.iter().min().copied().unwrap_or_default())
            .bind(ids.iter().max().copied().unwrap_or_default());
        let rows = self.all(statement).await?;
        read(EXPORT, &rows, key_and_row)
    }

    /// Logs of shells that these calls have started.
    async fn shells(&mut self, calls: &[Uuid]) -> Result<Vec<Uuid>> {
        let statement = sqlx::query(
            "SELECT DISTINCT output_owner FROM shells WHERE tenant_id = $1 AND call_id = ANY ($2) AND output_owner <> ALL ($2)",
        );
        let rows = self.all(statement.bind(self.tenant.uuid()).bind(calls)).await?;
        read(EXPORT, &rows, |row| row.try_get("output_owner"))
    }

    async fn next_object(&mut self, after: &[u8]) -> Result<Option<(Vec<u8>, u64)>> {
        let statement = sqlx::query(
            "SELECT o.sha256, o.size_bytes FROM artifact_objects o WHERE o.tenant_id = $1 AND o.sha256 > $2
               AND (EXISTS (SELECT FROM artifacts a WHERE a.tenant_id = o.tenant_id AND a.sha256 = o.sha256)
                   OR EXISTS (SELECT FROM wheels w WHERE w.tenant_id = o.tenant_id AND w.sha256 = o.sha256))
             ORDER BY o.sha256 LIMIT 1",
        );
        let rows = self.all(statement.bind(self.tenant.uuid()).bind(after)).await?;
        let found = read(EXPORT, &rows, |row| {
            Ok((row.try_get::<Vec<u8>, _>("sha256")?, unsigned(row.try_get("size_bytes")?)))
        })?;
        Ok(found.into_iter().next())
    }

    /// Every table that has rows of tenants, by name, with what of it this role may read.
    async fn tables(&mut self) -> Result<Vec<Table>> {
        let rows = self
            .all(sqlx::query(
                "WITH t AS (
                     SELECT c.oid, c.relname::text AS name FROM pg_class c
                     WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                 )
                 SELECT t.name, array_agg(a.attname::text ORDER BY a.attnum) AS columns,
                     array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum) AS types,
                     (SELECT array_agg(k.attname::text ORDER BY n.n) FROM pg_index i
                          CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY n(attnum, n)
                          JOIN pg_attribute k ON k.attrelid = t.oid AND k.attnum = n.attnum
                      WHERE i.indrelid = t.oid AND i.indisprimary) AS key
                 FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
                     AND has_column_privilege(t.oid, a.attnum, 'SELECT')
                 GROUP BY t.oid, t.name ORDER BY t.name",
            ))
            .await?;
        let found = read(EXPORT, &rows, |row| {
            let names = row.try_get::<Vec<String>, _>("columns")?;
            let types = row.try_get::<Vec<String>, _>("types")?;
            let key = row.try_get::<Option<Vec<String>>, _>("key")?.unwrap_or_default();
            Ok((row.try_get::<String, _>("name")?, names.into_iter().zip(types).collect::<Vec<_>>(), key))
        })?;
        Ok(found.into_iter().filter_map(|(name, columns, key)| Table::of(name, &columns, key)).collect())
    }
}

impl Table {
    /// `None` when its rows are nobody's.
    fn of(name: String, columns: &[(String, String)], key: Vec<String>) -> Option<Self> {
        let has = |column: &str| columns.iter().any(|(name, _)| name == column);
        let owner = match name.as_str() {
            "tenants" => "id",
            "audit_chain" => "chain",
            _ if has("tenant_id") => "tenant_id",
            _ => return None,
        };
        let by = KEYS.iter().find(|(table, _)| *table == name);
        let key = by.map_or(key, |(_, key)| key.iter().map(|column| (*column).to_owned()).collect());
        let typed = |column: &String| columns.iter().find(|(name, _)| name == column).cloned();
        let key: Vec<_> = key.iter().filter_map(typed).collect();
        if key.is_empty() {
            return None;
        }
        let told = |column: &str| !LEFT_OUT.contains(&(name.as_str(), column));
        let parts: Vec<_> =
            columns.iter().filter(|(name, _)| told(name)).map(|(name, kind)| part(name, kind)).collect();
        let columns = format!("SELECT to_jsonb(r) FROM (SELECT {}) r", parts.join(", "));
        Some(Self { name, key, owner, columns })
    }

    /// Rows of a page.
    fn rows(&self) -> i64 {
        if LARGE.contains(&self.name.as_str()) { LARGE_ROWS } else { ROWS }
    }

    fn order(&self) -> String {
        self.key.iter().map(|(name, _)| format!("t.{name}")).collect::<Vec<_>>().join(", ")
    }

    fn key_texts(&self) -> String {
        let texts: Vec<_> = self.key.iter().map(|(name, _)| format!("t.{name}::text")).collect();
        format!("ARRAY[{}] AS key", texts.join(", "))
    }

    /// Names and types come from the catalogue; values are bound.
    fn behind(&self, key: &[String]) -> String {
        if key.len() != self.key.len() {
            return "cardinality($2::text[]) >= 0".to_owned();
        }
        let values: Vec<_> = self
            .key
            .iter()
            .enumerate()
            .map(|(n, (_, kind))| format!("($2::text[])[{}]::{kind}", n + 1))
            .collect();
        format!("({}) > ({})", self.order(), values.join(", "))
    }
}

/// How a column is shown.
fn part(name: &str, kind: &str) -> String {
    match kind {
        "bytea" => format!("translate(encode(t.{name}, 'base64'), E'\\n', '') AS {name}"),
        "jsonb" if name == NAMES_ONLY => {
            format!(
                "(SELECT coalesce(jsonb_agg(k), '[]') FROM jsonb_object_keys(t.{name}) k) AS {name}_names"
            )
        }
        _ => format!("t.{name}"),
    }
}

fn key_and_row(row: &PgRow) -> Result<(Vec<String>, String), sqlx::Error> {
    Ok((row.try_get("key")?, row.try_get("row")?))
}
