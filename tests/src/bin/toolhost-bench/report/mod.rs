//! Rows with goals and verdicts: a table and a picture for people, JSON for machines.

mod chart;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::figures::Ratio;
use crate::machine;

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// A ratio.
    Times,
    /// Milliseconds.
    Milliseconds,
    /// Millions of bytes a second.
    MegabytesPerSecond,
    /// 1024 × 1024 bytes.
    Mebibytes,
    /// Things in a second.
    PerSecond,
    /// Things that went wrong.
    Failures,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    measure: &'static str,
    what: String,
    goal: Option<Goal>,
    figure: f64,
    unit: Unit,
    spread: Option<[f64; 2]>,
    measured: String,
    samples: Value,
}

impl Row {
    /// A ratio that has a goal.
    pub(crate) fn ratio(measure: &'static str, what: &str, goal: Goal, ratio: Ratio) -> Self {
        let spread = Some([ratio.least, ratio.most]);
        Self { spread, ..Self::new(measure, what, Some(goal), ratio.median, Unit::Times) }
    }

    /// A rate of bytes that has a goal.
    pub(crate) fn rate(measure: &'static str, what: &str, goal: Goal, rate: Ratio) -> Self {
        Self { unit: Unit::MegabytesPerSecond, ..Self::ratio(measure, what, goal, rate) }
    }

    /// A time in milliseconds that has a goal.
    pub(crate) fn time(measure: &'static str, what: &str, goal: Goal, ms: f64) -> Self {
        Self::new(measure, what, Some(goal), ms, Unit::Milliseconds)
    }

    /// Memory, in units of 1024 × 1024 bytes, that has a goal.
    pub(crate) fn memory(measure: &'static str, what: &str, goal: Goal, mib: f64) -> Self {
        Self::new(measure, what, Some(goal), mib, Unit::Mebibytes)
    }

    /// A comparison with a peer that is not installed.
    pub(crate) fn missing(measure: &'static str, what: &str, goal: impl Into<Option<Goal>>) -> Self {
        Self::new(measure, what, goal.into(), f64::NAN, Unit::Times)
            .measured("not installed: make bench-peers".to_owned())
    }

    /// Something that went wrong, or did not.
    pub(crate) fn failures(measure: &'static str, what: &str, count: usize) -> Self {
        Self::new(measure, what, Some(Goal::AtMost(0.0)), count as f64, Unit::Failures)
    }

    /// A figure that only explains others.
    pub(crate) fn note(measure: &'static str, what: &str, figure: f64, unit: Unit) -> Self {
        Self::new(measure, what, None, figure, unit)
    }

    fn new(measure: &'static str, what: &str, goal: Option<Goal>, figure: f64, unit: Unit) -> Self {
        let what = what.to_owned();
        Self {
            measure,
            what,
            goal,
            figure,
            unit,
            spread: None,
            measured: String::new(),
            samples: Value::Null,
        }
    }

    /// The absolute figures behind it, in a few words.
    pub(crate) fn measured(self, measured: String) -> Self {
        Self { measured, ..self }
    }

    /// The samples behind it.
    pub(crate) fn samples(self, samples: Value) -> Self {
        Self { samples, ..self }
    }

    fn verdict(&self) -> String {
        match self.goal {
            None => String::new(),
            Some(_) if self.figure.is_nan() => "not measured".to_owned(),
            Some(goal) if reached(goal, self.figure) => "reached".to_owned(),
            Some(Goal::AtMost(limit)) if limit > 0.0 => format!("{:.2} × away", self.figure / limit),
            Some(Goal::AtLeast(limit)) if self.figure > 0.0 => format!("{:.2} × away", limit / self.figure),
            Some(_) => "missed".to_owned(),
        }
    }

    fn sign(&self) -> &'static str {
        match self.unit {
            Unit::Times => "×",
            Unit::Milliseconds => "ms",
            Unit::MegabytesPerSecond => "MB/s",
            Unit::Mebibytes => "MiB",
            Unit::PerSecond => "/s",
            Unit::Failures => "",
        }
    }

    fn cells(&self) -> [String; 6] {
        let goal = match self.goal {
            None => String::new(),
            Some(Goal::AtMost(0.0)) => "none".to_owned(),
            Some(Goal::AtMost(limit)) => format!("≤ {limit} {}", self.sign()),
            Some(Goal::AtLeast(limit)) => format!("≥ {limit} {}", self.sign()),
        };
        let figure = match (self.unit, self.spread) {
            _ if self.figure.is_nan() => "–".to_owned(),
            (Unit::Times, Some([least, most])) if least < most => {
                format!("{:.2} × ({least:.2}–{most:.2})", self.figure)
            }
            (Unit::Times, _) => format!("{:.2} ×", self.figure),
            (Unit::Milliseconds, _) => format!("{:.2} ms", self.figure),
            (Unit::MegabytesPerSecond | Unit::Mebibytes, Some([least, most])) => {
                format!("{:.0} {} ({least:.0}–{most:.0})", self.figure, self.sign())
            }
            (Unit::MegabytesPerSecond | Unit::Mebibytes, None) => {
                format!("{:.1} {}", self.figure, self.sign())
            }
            (Unit::PerSecond, _) => format!("{:.0} /s", self.figure),
            (Unit::Failures, _) if self.figure == 0.0 => "none".to_owned(),
            (Unit::Failures, _) => format!("{:.0}", self.figure),
        };
        [self.measure.to_owned(), self.what.clone(), goal, figure, self.verdict(), self.measured.clone()]
    }
}

fn reached(goal: Goal, figure: f64) -> bool {
    match goal {
        Goal::AtMost(limit) => figure <= limit,
        Goal::AtLeast(limit) => figure >= limit,
    }
}

/// All rows, and what they were measured on.
#[derive(Debug)]
pub(crate) struct Report {
    context: Value,
    rows: Vec<Row>,
}

impl Report {
    /// An empty one.
    pub(crate) fn new(context: Value) -> Self {
        Self { context, rows: Vec::new() }
    }

    /// More rows.
    pub(crate) fn add(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    /// Nothing more will be measured.
    pub(crate) fn finish(&mut self) {
        self.context["machine"]["load_after"] = Value::from(machine::load());
        self.context["at"] = Value::from(chrono::Utc::now().to_rfc3339());
    }

    /// Everything, for machines.
    ///
    /// # Errors
    /// Never, as everything in it can be written as JSON.
    pub(crate) fn json(&self) -> Result<String> {
        let mut page = self.context.clone();
        page["rows"] = json!(self.rows);
        for (row, value) in self.rows.iter().zip(page["rows"].as_array_mut().into_iter().flatten()) {
            value["verdict"] = Value::from(row.verdict());
        }
        Ok(serde_json::to_string_pretty(&page)?)
    }

    /// The figures that have a goal, as a picture.
    pub(crate) fn chart(&self) -> String {
        chart::draw(self)
    }

    /// When, on what and with what it was measured, in a line.
    fn facts(&self) -> String {
        let fact =
            |group: &str, name: &str| self.context[group][name].as_str().unwrap_or_default().to_owned();
        let at = self.context["at"].as_str().and_then(|at| at.get(..10)).unwrap_or_default();
        let load = |name: &str| fact("machine", name).split(' ').next().unwrap_or_default().to_owned();
        format!(
            "{at}, {} build of {}; {}, {} cores; load {} before, {} after",
            fact("versions", "build"),
            fact("versions", "commit"),
            fact("machine", "cpu"),
            self.context["machine"]["cores"],
            load("load_before"),
            load("load_after"),
        )
    }

    /// For a page of documentation: what it was measured on, and the table.
    pub(crate) fn markdown(&self) -> String {
        let picture = "![Each figure as a multiple of its goal](performance-results.svg)";
        format!("{}.\n\n{}\n{picture}\n", self.facts(), self.table())
    }

    /// The table, in Markdown that reads well on a terminal too.
    pub(crate) fn table(&self) -> String {
        let head = ["", "what", "goal", "figure (rounds)", "verdict", "measured"].map(str::to_owned);
        let mut lines = vec![head];
        lines.extend(self.rows.iter().map(Row::cells));
        let widths: [usize; 6] = std::array::from_fn(|column| {
            lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or_default()
        });
        let rule = std::array::from_fn(|column| "-".repeat(widths[column]));
        lines.insert(1, rule);
        let mut page: String = lines.iter().map(|cells| line(cells, widths)).collect();
        for group in ["machine", "versions"] {
            let facts = self.context[group].as_object().into_iter().flatten();
            let facts: Vec<String> = facts
                .map(|(name, value)| format!("{name}: {}", value.to_string().trim_matches('"')))
                .collect();
            page.push_str(&format!("\n{}: {}\n", group, facts.join(" · ")));
        }
        page
    }
}

fn line(cells: &[String; 6], widths: [usize; 6]) -> String {
    let mut line = String::from("|");
    for (cell, width) in cells.iter().zip(widths) {
        let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
        line.push_str(&format!(" {cell}{padding} |"));
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_says_how_far_it_is() {
        let verdict = |goal, figure| Row::new("P1", "x", Some(goal), figure, Unit::Times).verdict();
        assert_eq!(verdict(Goal::AtMost(1.2), 1.2), "reached");
        assert_eq!(verdict(Goal::AtMost(1.2), 2.4), "2.00 × away");
        assert_eq!(verdict(Goal::AtLeast(20.0), 10.0), "2.00 × away");
        assert_eq!(verdict(Goal::AtLeast(20.0), 30.0), "reached");
        assert_eq!(verdict(Goal::AtMost(1.2), f64::NAN), "not measured");
        assert_eq!(Row::failures("P5", "x", 1).verdict(), "missed");
        assert_eq!(Row::failures("P5", "x", 0).verdict(), "reached");
    }

    #[test]
    fn the_table_is_markdown() {
        let mut report = Report::new(json!({"machine": {"cores": 2}, "versions": {}}));
        report.add(vec![Row::failures("P5", "sessions that failed", 0)]);
        let table = report.table();
        assert!(table.contains("| P5 | sessions that failed | none | none "), "{table}");
        assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("| --")), "{table}");
        assert!(table.contains("cores: 2"), "{table}");
    }
}
