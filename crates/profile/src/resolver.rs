//! What an expression asks of a binary.

/// What only the matched binary and process can answer.
pub trait Resolver {
    /// The address of a global symbol of the matched object in this process.
    fn var(&self, symbol: &str) -> Option<u64>;
    /// The offset of a field, from the object's debug information; the error says what was missing.
    fn offset_of(&self, type_name: &str, field: &str) -> Result<u64, String>;
}
