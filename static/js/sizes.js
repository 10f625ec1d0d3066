// Bytes in words, as the pages' `size` filter writes them: 65.2 MB, 4.2 GB (with a narrow no-break space before the unit).
export function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(value) < 999.5 || unit === "TB") {
      const digits = unit === "B" || Math.abs(value) >= 99.95 ? 0 : 1;
      return `${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}\u202f${unit}`;
    }
    value /= 1000;
  }
}
// "a, b and c"
export const joined = (words) => words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words[0] ?? "";
