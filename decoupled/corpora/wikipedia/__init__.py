"""MediaWiki dumps: pages cut from compressed XML, and their markup to plain text."""
