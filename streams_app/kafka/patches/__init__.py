"""What is changed in aiokafka and Faust, one file a patch."""
