"""The dialect of OpenAI's Batch API: its lines as input rows, and the partition as its output and error files."""
