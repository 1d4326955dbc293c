//! An artifact: a file that is kept beyond its sandbox.

use std::collections::BTreeMap;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{ArtifactId, CallId, SessionId, TenantId};

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// What an artifact is to those who work with it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ArtifactKind {
            $($(#[$doc])* $variant,)*
        }

        impl ArtifactKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word on the wire and in the database.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

kinds! {
    /// A first idea.
    Idea = "idea";
    /// A product requirements document.
    Prd = "prd";
    /// A design.
    Design = "design";
    /// A plan.
    Plan = "plan";
    /// A request to change something.
    ChangeRequest = "change_request";
    /// What a check found.
    CheckReport = "check_report";
    /// What was delivered.
    DeliveryReport = "delivery_report";
    /// A summary.
    Summary = "summary";
    /// Output of a call that was too long for its result.
    Output = "output";
    /// A picture that a call made.
    Image = "image";
    /// Anything else.
    Other = "other";
}

impl FromStr for ArtifactKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text).ok_or(())
    }
}

/// A file that is kept beyond its sandbox. Its content never changes: saving under the same name makes another version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Its id.
    pub id: ArtifactId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// The session that it comes from, which may be long over.
    pub session_id: SessionId,
    /// The call that made it.
    pub call_id: CallId,
    /// Its name, the same for all its versions.
    pub name: String,
    /// 1, 2, 3 … for each name of a session.
    pub version: u32,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type, as its maker says.
    pub mime_type: String,
    /// Bytes.
    pub size_bytes: u64,
    /// SHA-256 of the content, in hex.
    pub sha256: String,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// When it was saved.
    pub created_at: DateTime<Utc>,
}

/// What an event tells of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactFacts {
    /// Its id.
    pub id: ArtifactId,
    /// Its name.
    pub name: String,
    /// Which of the versions of its name.
    pub version: u32,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: String,
    /// Bytes.
    pub size_bytes: u64,
    /// SHA-256 of the content, in hex.
    pub sha256: String,
}

impl Artifact {
    /// What an event tells of it.
    #[must_use]
    pub fn facts(&self) -> ArtifactFacts {
        ArtifactFacts {
            id: self.id,
            name: self.name.clone(),
            version: self.version,
            kind: self.kind,
            mime_type: self.mime_type.clone(),
            size_bytes: self.size_bytes,
            sha256: self.sha256.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_read_as_they_are_written() {
        for kind in ArtifactKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(*kind));
            assert_eq!(serde_json::to_value(kind).expect("serialises"), kind.as_str());
        }
    }
}
