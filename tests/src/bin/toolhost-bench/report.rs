//! The table that is printed, and the JSON beside it.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

/// One figure.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    id: &'static str,
    what: &'static str,
    value: f64,
    unit: &'static str,
    goal: Option<&'static str>,
    samples: usize,
}

impl Row {
    /// A figure. Times come in seconds and are shown in `ms`.
    pub(crate) fn new(
        id: &'static str,
        what: &'static str,
        value: f64,
        unit: &'static str,
        goal: Option<&'static str>,
    ) -> Self {
        let value = if unit == "ms" { value * 1_000.0 } else { value };
        Self { id, what, value, unit, goal, samples: 0 }
    }

    /// How many samples it rests on.
    pub(crate) fn of(mut self, samples: usize) -> Self {
        self.samples = samples;
        self
    }

    fn shown(&self) -> String {
        let digits = if self.unit.is_empty() || self.value >= 100.0 { 0 } else { 2 };
        format!("{:.digits$} {}", self.value, self.unit)
    }
}

/// All figures of a run.
#[derive(Debug)]
pub(crate) struct Report {
    machine: Value,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(machine: Value) -> Self {
        Self { machine, rows: Vec::new() }
    }

    pub(crate) fn extend(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    pub(crate) fn print(&self) {
        println!("\n{:<4}{:<52}{:>12}  {:<8}{:>8}", "", "", "figure", "goal", "samples");
        for row in &self.rows {
            let goal = row.goal.unwrap_or("");
            println!("{:<4}{:<52}{:>12}  {goal:<8}{:>8}", row.id, row.what, row.shown(), row.samples);
        }
        println!("\n{}", self.machine);
    }

    pub(crate) fn write(&self) -> Result<PathBuf> {
        let folder = PathBuf::from("target/bench");
        std::fs::create_dir_all(&folder)?;
        let at = chrono::Utc::now().format("%Y%m%dT%H%M%SZ");
        let path = folder.join(format!("{at}.json"));
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| json!({"id": row.id, "what": row.what, "value": row.value, "unit": row.unit, "goal": row.goal, "samples": row.samples}))
            .collect();
        let report = json!({"at": at.to_string(), "machine": self.machine, "figures": rows});
        std::fs::write(&path, serde_json::to_string_pretty(&report)?)?;
        Ok(path)
    }
}
