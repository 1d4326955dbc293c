//! Names of the source systems: a tool's other names, and the names and units that their arguments have there.
//!
//! Translation is pure and happens once, at admission; a tool only ever sees its own argument names.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::ArgumentProblem;

/// Whose names and result form a caller uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Our own.
    Toolhost,
    /// Open CoWork.
    OpenCowork,
    /// MyCoder.
    Mycoder,
    /// OpenManus (`output, error, base64_image, system`).
    OpenManus,
    /// Cowork Forge (`status, message, data`).
    CoworkForge,
}

/// Another name of a tool, and what is different when it is called by it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Alias {
    /// The name.
    pub name: &'static str,
    /// Whose name it is.
    pub dialect: Dialect,
    /// Argument names of that system, looked up before those of the tool.
    #[serde(skip)]
    pub arguments: &'static [ArgumentAlias],
    /// What holds there when the caller does not say.
    #[serde(skip)]
    pub presets: &'static [Preset],
    /// Timeout there when the caller does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_timeout_ms: Option<u64>,
    /// When none of these arguments is given, the name means this other tool.
    #[serde(skip)]
    pub otherwise: Option<Otherwise>,
    /// Fields of the tool's own result under their names there.
    #[serde(skip)]
    pub results: &'static [(&'static str, &'static str)],
    /// The message of a success there, where answers have one.
    #[serde(skip)]
    pub success: Option<&'static str>,
}

impl Alias {
    /// A name without differences of its own.
    #[must_use]
    pub const fn new(name: &'static str, dialect: Dialect) -> Self {
        Self {
            name,
            dialect,
            arguments: &[],
            presets: &[],
            default_timeout_ms: None,
            otherwise: None,
            results: &[],
            success: None,
        }
    }

    /// The same with argument names.
    #[must_use]
    pub const fn arguments(mut self, arguments: &'static [ArgumentAlias]) -> Self {
        self.arguments = arguments;
        self
    }

    /// The same with presets.
    #[must_use]
    pub const fn presets(mut self, presets: &'static [Preset]) -> Self {
        self.presets = presets;
        self
    }

    /// The same with a timeout.
    #[must_use]
    pub const fn timeout_ms(mut self, timeout_ms: u64) -> Self {
        self.default_timeout_ms = Some(timeout_ms);
        self
    }

    /// The same with names of result fields.
    #[must_use]
    pub const fn results(mut self, results: &'static [(&'static str, &'static str)]) -> Self {
        self.results = results;
        self
    }

    /// The same with the message of a success.
    #[must_use]
    pub const fn success(mut self, message: &'static str) -> Self {
        self.success = Some(message);
        self
    }

    /// The same with another tool that is meant when none of the arguments is given.
    #[must_use]
    pub const fn otherwise(mut self, unless_any: &'static [&'static str], tool: &'static str) -> Self {
        self.otherwise = Some(Otherwise { when: When::NoneOf(unless_any), tool });
        self
    }

    /// The same with another tool that is meant when the arguments say so.
    #[must_use]
    pub const fn otherwise_when(mut self, says: fn(&Value) -> bool, tool: &'static str) -> Self {
        self.otherwise = Some(Otherwise { when: When::Says(says), tool });
        self
    }
}

/// Another tool that an alias means, by the arguments given.
#[derive(Debug, Clone, Copy)]
pub struct Otherwise {
    /// When it is meant.
    pub when: When,
    /// Its own name.
    pub tool: &'static str,
}

/// When an alias means its other tool.
#[derive(Debug, Clone, Copy)]
pub enum When {
    /// None of these arguments is given.
    NoneOf(&'static [&'static str]),
    /// The arguments say so.
    Says(fn(&Value) -> bool),
}

impl When {
    /// Whether these arguments mean the other tool.
    pub(crate) fn holds(self, arguments: &Value) -> bool {
        match self {
            Self::NoneOf(names) => {
                !names.iter().any(|name| arguments.get(name).is_some_and(|value| !value.is_null()))
            }
            Self::Says(says) => says(arguments),
        }
    }
}

/// A value that holds when the caller does not say.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The tool's own argument.
    pub field: &'static str,
    /// Its value.
    pub value: PresetValue,
    /// Left alone when one of these of the tool's own arguments is given.
    pub unless: &'static [&'static str],
}

/// The value of a preset.
#[derive(Debug, Clone, Copy)]
pub enum PresetValue {
    /// A flag.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A text.
    Text(&'static str),
}

/// Another name of an argument.
#[derive(Debug, Clone, Copy)]
pub struct ArgumentAlias {
    /// The name.
    pub name: &'static str,
    /// What it means.
    pub target: Target,
}

/// What another name of an argument means.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// The tool's own argument, same value.
    Field(&'static str),
    /// The tool's own argument, with the opposite truth value.
    Not(&'static str),
    /// The call's `timeout_ms`, in this unit.
    Timeout(Unit),
    /// The tool's own arguments, by a function. The names are for messages and documentation.
    Convert(&'static [&'static str], Convert),
    /// Accepted without effect; the sentence says why that is right.
    Ignored(&'static str),
    /// Refused; the sentence says what to do instead.
    Refused(&'static str),
}

/// Turns a value into the tool's own arguments, or says what it should be.
pub type Convert = fn(&Value) -> Result<Vec<(&'static str, Value)>, String>;

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
}

/// The tool's own argument under another name.
pub(crate) const fn renamed(name: &'static str, field: &'static str) -> ArgumentAlias {
    ArgumentAlias { name, target: Target::Field(field) }
}

/// The call's timeout under another name.
pub(crate) const fn timeout(name: &'static str, unit: Unit) -> ArgumentAlias {
    ArgumentAlias { name, target: Target::Timeout(unit) }
}

/// An argument that is not there yet, or never.
pub(crate) const fn refused(name: &'static str, instead: &'static str) -> ArgumentAlias {
    ArgumentAlias { name, target: Target::Refused(instead) }
}

/// Arguments of a call in the tool's own names, and what was hoisted out of them.
#[derive(Debug, Default)]
pub(crate) struct Translated {
    /// The tool's own arguments.
    pub(crate) arguments: Map<String, Value>,
    /// The call's timeout, if it was among them.
    pub(crate) timeout_ms: Option<Value>,
    /// Where it was.
    pub(crate) timeout_name: String,
    /// Why the model wants it, if it was among them.
    pub(crate) description: Option<Value>,
    /// What is wrong.
    pub(crate) problems: Vec<ArgumentProblem>,
    /// Which name each of the tool's own arguments was given under, when another.
    pub(crate) given_as: Vec<(String, String)>,
}

/// Every tool's: fields of the call that models put among the arguments.
const COMMON: &[ArgumentAlias] = &[
    timeout("timeout_ms", Unit::Milliseconds),
    refused("idempotency_key", "send it as the Idempotency-Key header of the request"),
];

/// Translates arguments. `own` says which names the tool itself has.
pub(crate) fn translate(
    given: Map<String, Value>,
    alias: Option<&Alias>,
    aliases: &[ArgumentAlias],
    own: impl Fn(&str) -> bool,
) -> Translated {
    let mut translated = Translated::default();
    let of_alias = alias.map_or(&[][..], |alias| alias.arguments);
    for (name, value) in given {
        let found = of_alias.iter().find(|candidate| candidate.name == name);
        if found.is_none() && own(&name) {
            translated.put(&name, &name, value);
            continue;
        }
        if found.is_none() && name == "description" {
            translated.description = (!value.is_null()).then_some(value);
            continue;
        }
        match found.or_else(|| aliases.iter().chain(COMMON).find(|candidate| candidate.name == name)) {
            Some(known) => translated.apply(known, value),
            None => translated.put(&name, &name, value),
        }
    }
    for preset in alias.map_or(&[][..], |alias| alias.presets) {
        translated.preset(preset);
    }
    translated
}

impl Translated {
    fn apply(&mut self, known: &ArgumentAlias, value: Value) {
        // A model that fills in every optional argument sends null for "nothing".
        if value.is_null() {
            return;
        }
        let name = known.name;
        match known.target {
            Target::Field(field) => self.put(field, name, value),
            Target::Not(field) => match value.as_bool() {
                Some(flag) => self.put(field, name, (!flag).into()),
                None => self.problem(name, "must be true or false"),
            },
            Target::Timeout(unit) => self.put_timeout(name, unit, value),
            Target::Convert(_, convert) => match convert(&value) {
                Ok(fields) => fields.into_iter().for_each(|(field, value)| self.put(field, name, value)),
                Err(message) => self.problem(name, message),
            },
            Target::Ignored(_) => {}
            Target::Refused(instead) => self.problem(name, format!("is not available: {instead}")),
        }
    }

    fn put(&mut self, field: &str, name: &str, value: Value) {
        if value.is_null() {
            // Null for something required reads as missing, which is what it means.
            return;
        }
        if self.arguments.contains_key(field) {
            self.clash(field, name);
            return;
        }
        if field != name {
            self.given_as.push((field.to_owned(), name.to_owned()));
        }
        self.arguments.insert(field.to_owned(), value);
    }

    fn put_timeout(&mut self, name: &str, unit: Unit, value: Value) {
        if self.timeout_ms.is_some() {
            self.clash("timeout_ms", name);
            return;
        }
        let milliseconds = match unit {
            Unit::Milliseconds => Some(value),
            // A fraction of a second is fine; of a millisecond is not worth a refusal.
            Unit::Seconds => value
                .as_f64()
                .filter(|seconds| (0.0..1e9).contains(seconds))
                .map(|s| ((s * 1_000.0).round() as u64).into()),
        };
        match milliseconds {
            Some(value) => {
                self.timeout_ms = Some(value);
                name.clone_into(&mut self.timeout_name);
            }
            None => self.problem(name, "must be a number of seconds"),
        }
    }

    fn clash(&mut self, field: &str, name: &str) {
        let earlier = self.given_as.iter().find(|(own, _)| own == field).map_or_else(
            || if field == "timeout_ms" { self.timeout_name.clone() } else { field.to_owned() },
            |(_, other)| other.clone(),
        );
        self.problem(name, format!("means the same as `{earlier}`, which is given too; give only `{field}`"));
    }

    fn problem(&mut self, name: &str, message: impl AsRef<str>) {
        self.problems.push(ArgumentProblem::new(
            crate::admission::pointer(&[name]),
            format!("`{name}` {}", message.as_ref()),
        ));
    }

    fn preset(&mut self, preset: &Preset) {
        let given = |field: &str| self.arguments.contains_key(field);
        if given(preset.field) || preset.unless.iter().any(|field| given(field)) {
            return;
        }
        let value = match preset.value {
            PresetValue::Flag(flag) => flag.into(),
            PresetValue::Number(number) => number.into(),
            PresetValue::Text(text) => text.into(),
        };
        self.arguments.insert(preset.field.to_owned(), value);
    }
}
