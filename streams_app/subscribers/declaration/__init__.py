"""How an application declares subscribers (functions, retries, catalogue), and how the settings complete these declarations."""
