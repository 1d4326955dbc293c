//! Wheels on the wire.

use domain::Wheel;
use serde::Serialize;
use utoipa::ToSchema;

use super::Time;

/// A built Python package that the tenant keeps for `packages` of its sessions. Its content never changes.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Wheel)]
pub struct WheelView {
    /// Its id.
    #[schema(value_type = String, examples("whl_06b2m8j0v5x3t9q7k1h4c8n2ra"))]
    pub id: domain::WheelId,
    /// Always `wheel`.
    #[schema(pattern = "^wheel$")]
    pub object: &'static str,
    /// Its file's name in its one form: lower case, the project with `_` for `-` and `.`.
    #[schema(examples("python_slugify-9.2.0-py3-none-any.whl"))]
    pub file_name: String,
    /// The project, as requirements name it.
    #[schema(examples("python-slugify"))]
    pub project: String,
    /// The version.
    #[schema(examples("9.2.0"))]
    pub version: String,
    /// Bytes.
    pub size_bytes: u64,
    /// SHA-256 of its content, in hexadecimal.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub sha256: String,
    /// When it was put here.
    pub created_at: Time,
    /// When a session last got it; null when none has.
    pub last_used_at: Option<Time>,
}

impl From<Wheel> for WheelView {
    fn from(wheel: Wheel) -> Self {
        Self {
            id: wheel.id,
            object: "wheel",
            file_name: wheel.name.to_string(),
            project: wheel.name.project(),
            version: wheel.name.version().to_owned(),
            size_bytes: wheel.size_bytes,
            sha256: wheel.sha256,
            created_at: wheel.created_at.into(),
            last_used_at: wheel.last_used_at.map(Into::into),
        }
    }
}
